package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/faults"
)

// outdated are what Consul says of an operation that rests on what is out of date.
var outdated = []string{"failed index check", `" exists`, "doesn't exist", "index is stale", "lock is already held", "lock isn't held"}

// rolledBack returns the error of a transaction that has changed nothing.
func rolledBack(errs api.TxnErrors) error {
	texts := make([]string, 0, len(errs))
	for _, err := range errs {
		texts = append(texts, err.What)
	}
	text := strings.Join(texts, "; ")
	switch {
	case strings.Contains(text, "due to lock delay"):
		return fmt.Errorf("%w: consul blocks it during the lock delay", elector.ErrHeld)
	case strings.Contains(text, "invalid session"):
		return fmt.Errorf("%w: consul no longer knows its session", elector.ErrLost)
	}
	for _, o := range outdated {
		if strings.Contains(text, o) {
			return fmt.Errorf("%w: %s", kv.ErrConflict, text)
		}
	}
	return errors.New(text)
}

// limitRemedy says what to do about requests that Consul refuses because of their number.
const limitRemedy = "The agent refuses connections above limits.http_max_conns_per_client, 200 for each client address by default, whoever opens them: " +
	"raise it in the agent's configuration, or give Fencepost an agent of its own. If limits.request_limits is set, raise that too. See docs/consul.md, Limits of Consul."

// failed returns the error of a request, as an *elector.DeniedError if Consul's answer shows
// that only an operator can help, and as an *elector.LimitedError if it is that of a limit.
func (s *consulStore) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", what, err)
	var status api.StatusError
	text := err.Error()
	if errors.As(err, &status) {
		text = fmt.Sprintf("%d %s", status.Code, strings.TrimSpace(status.Body))
	}
	switch {
	case strings.Contains(text, "Invalid Session TTL"):
		return &elector.DeniedError{
			Kind: faults.LeaseTTL, Answer: text, Err: err,
			Remedy: "Set lease.ttl, and the ttl of each resource that has one, to a value that Consul accepts (10s or more, unless session_ttl_min of its servers allows less).",
		}
	case status.Code == http.StatusForbidden, status.Code == http.StatusUnauthorized,
		strings.Contains(text, "Permission denied"), strings.Contains(text, "ACL not found"), strings.Contains(text, "the token lacks"):
		token := "Set an ACL token"
		if s.hasToken {
			token = "Check the ACL token"
		}
		return &elector.DeniedError{
			Kind: faults.LeaseDenied, Answer: text, Err: err,
			Remedy: fmt.Sprintf("%s (election.consul.token, FENCEPOST_ELECTION_CONSUL_TOKEN): it needs key_prefix %q write and session_prefix \"\" write.", token, s.prefix),
		}
	case status.Code == http.StatusTooManyRequests:
		return &elector.LimitedError{Err: fmt.Errorf("%s: %w", s.name, err), Remedy: limitRemedy}
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s does not answer: %w", s.name, err)
	}
	return err
}
