package zookeeper

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/faults"
)

// errQuota is how the library calls an answer that it does not know: a quota is used up.
const errQuota = "unknown error: -125"

// failed returns the error of a request. What the callers compare, such as zk.ErrNoNode, stays in it.
func (c *connection) failed(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zk.ErrNoServer), errors.Is(err, zk.ErrConnectionClosed), errors.Is(err, zk.ErrClosing), errors.Is(err, zk.ErrSessionExpired):
		return fmt.Errorf("%s: %w", what, &kv.Unreachable{Service: c.name, Err: c.cause()})
	case errors.Is(err, zk.ErrNoAuth), errors.Is(err, zk.ErrAuthFailed), errors.Is(err, zk.ErrInvalidACL):
		c.denied()
		return denied(what, err, c.remedy)
	case strings.Contains(err.Error(), errQuota):
		return denied(what, errors.New("quota exceeded"), "Raise the quota of the prefix (setquota), or remove it.")
	}
	return fmt.Errorf("%s: %w", what, err)
}

func denied(what string, answer error, remedy string) error {
	return &elector.DeniedError{
		Kind: faults.LeaseDenied, Answer: strings.TrimPrefix(answer.Error(), "zk: "), Err: fmt.Errorf("%s: %w", what, answer), Remedy: remedy,
	}
}
