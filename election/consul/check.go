package consul

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/internal/faults"
)

// Check tries what an election needs: it writes below the prefix, and creates a session
// with each TTL. It returns nil if Consul allows all of that, an *election.DeniedError
// if Consul denies some of it, and any other error if Consul does not answer.
func (c *Client) Check(ctx context.Context, ttls []time.Duration) error {
	if _, err := c.makeInstanceID(ctx); err != nil { // which writes nothing if there is one
		return c.denied(err)
	}
	for _, ttl := range ttls {
		session, _, err := c.api.Session().CreateNoChecks(&api.SessionEntry{
			Name: c.sessionName() + " (check)", TTL: ttl.String(), LockDelay: c.cfg.LockDelay, Behavior: api.SessionBehaviorRelease,
		}, write(ctx))
		if err != nil {
			return c.denied(fmt.Errorf("create a session with a TTL of %s: %w", ttl, err))
		}
		c.dispose(session)
	}
	return nil
}

// Position does what Check does, and returns how far Consul has counted: to the sessions that Check
// has created, if the token may see them, otherwise only in which instance.
func (c *Client) Position(ctx context.Context, ttls []time.Duration) (election.Position, error) {
	p := election.Position{Source: Source, Index: math.MaxInt64}
	if err := c.Check(ctx, ttls); err != nil {
		return p, err
	}
	_, meta, err := c.api.Session().List(read(ctx))
	switch {
	case isStatus(err, http.StatusForbidden):
	case err != nil:
		return p, c.denied(fmt.Errorf("list sessions: %w", err))
	default:
		p.Index = int64(meta.LastIndex)
	}
	pair, _, err := c.api.KV().Get(c.instanceKey(), read(ctx))
	if err != nil {
		return p, c.denied(fmt.Errorf("read %s: %w", c.instanceKey(), err))
	}
	if pair != nil {
		p.InstanceID = string(pair.Value)
	}
	return p, nil
}

// denied returns err as an *election.DeniedError if Consul's answer shows that only an
// operator can help.
func (c *Client) denied(err error) error {
	var status api.StatusError
	text := ""
	if errors.As(err, &status) {
		text = fmt.Sprintf("%d %s", status.Code, strings.TrimSpace(status.Body))
	} else if err != nil {
		text = err.Error()
	}
	switch {
	case strings.Contains(text, "Invalid Session TTL"):
		return &election.DeniedError{
			Kind: faults.LeaseTTL, Answer: text, Err: err,
			Remedy: "Set lease.ttl, and the ttl of each resource that has one, to a value that Consul accepts (10s or more, unless session_ttl_min of its servers allows less).",
		}
	case isStatus(err, http.StatusForbidden), isStatus(err, http.StatusUnauthorized),
		strings.Contains(text, "Permission denied"), strings.Contains(text, "the token lacks"):
		token := "Check the ACL token (election.consul.token, FENCEPOST_ELECTION_CONSUL_TOKEN)"
		if c.cfg.Token == "" {
			token = "Set an ACL token (election.consul.token, FENCEPOST_ELECTION_CONSUL_TOKEN)"
		}
		return &election.DeniedError{
			Kind: faults.LeaseDenied, Answer: text, Err: err,
			Remedy: fmt.Sprintf("%s: it needs key_prefix %q write and session_prefix \"\" write.", token, c.cfg.Prefix+"/"),
		}
	}
	return c.unanswered(err)
}
