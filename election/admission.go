package election

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/fencepost/fencepost/fencing"
)

// SQLSTATEs of refused join requests, taken from Postgres.
const (
	stateInvalidValue  = "22023"
	stateNotAuthorized = "28000" // invalid_authorization_specification
	stateLimitExceeded = "53400" // configuration_limit_exceeded
)

// admits returns a *fencing.Refusal if req asks for something that its role may not
// have.
func (s Settings) admits(req fencing.JoinRequest) error {
	resource := strconv.QuoteToASCII(req.Resource)
	if s.Users != nil && req.Campaign != fencing.CampaignOff && !slices.Contains(s.Users, req.User) {
		return &fencing.Refusal{
			SQLState: stateNotAuthorized,
			Message:  fmt.Sprintf("user %s may not campaign for resource %s", strconv.QuoteToASCII(req.User), resource),
			Hint: "Fencepost's setting resources.<name>.users lists the users that may: connect as one of them, or add this one there. " +
				"Other users can connect as observers with fencepost.campaign=off.",
		}
	}
	if err := s.admitsHeartbeat(req); err != nil {
		return err
	}
	most, asked := s.MaxWorkerTimeout, req.WorkerTimeout
	if most == 0 || asked < 0 || asked > 0 && asked <= most {
		return nil
	}
	text := asked.String()
	if asked == 0 {
		text = "0 (never)"
	}
	return &fencing.Refusal{
		SQLState: stateInvalidValue,
		Message:  fmt.Sprintf("fencepost.worker_timeout is %s, but resource %s allows at most %v", text, resource, most),
		Hint: fmt.Sprintf("Ask for %v or less, or leave it out (%v is configured). "+
			"Fencepost's setting lease.max_worker_timeout sets the limit; 0s means no limit.", most, s.WorkerTimeout),
	}
}

// admitsHeartbeat returns a *fencing.Refusal if the worker promises a heartbeat that is out of
// bounds, or that could not be missed before its timeout. So lease.max_worker_timeout limits
// heartbeats too.
func (s Settings) admitsHeartbeat(req fencing.JoinRequest) error {
	every, timeout := req.Heartbeat, req.WorkerTimeout
	if timeout < 0 {
		timeout = s.WorkerTimeout
	}
	switch {
	case every == 0:
		return nil
	case every < minHeartbeat || every > maxHeartbeat:
		return &fencing.Refusal{
			SQLState: stateInvalidValue,
			Message:  fmt.Sprintf("fencepost.heartbeat is %v, but it must be between %v and %v", every, minHeartbeat, maxHeartbeat),
			Hint:     "Use 1s, unless there is a reason for another value.",
		}
	case timeout > 0 && every >= timeout && req.Campaign != fencing.CampaignOff:
		return &fencing.Refusal{
			SQLState: stateInvalidValue,
			Message:  fmt.Sprintf("fencepost.heartbeat is %v, but the worker counts as unresponsive after %v", every, timeout),
			Hint:     "Promise a heartbeat that is several times shorter than the worker timeout, or raise fencepost.worker_timeout or lease.worker_timeout.",
		}
	}
	return nil
}

// usage says which resources each role uses: those that it has joined and that have not been
// forgotten since. A resource that a role has left still counts, so that a role cannot
// create resources without end one after another.
type usage map[string]map[resourceKey]struct{}

func (u usage) add(user string, key resourceKey) {
	if u[user] == nil {
		u[user] = map[resourceKey]struct{}{}
	}
	u[user][key] = struct{}{}
}

func (u usage) remove(user string, key resourceKey) {
	delete(u[user], key)
	if len(u[user]) == 0 {
		delete(u, user)
	}
}

func (u usage) forget(key resourceKey) {
	for user := range u {
		u.remove(user, key)
	}
}

// reserve counts a resource for a role before it is opened, because that may create it. It
// returns a *fencing.Refusal if the role uses as many as it may.
func (e *Elections) reserve(user string, key resourceKey) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.mu.usage[user][key]; ok {
		return nil
	}
	limit := e.cfg.ResourcesPerUser()
	if limit > 0 && len(e.mu.usage[user]) >= limit {
		e.dropLeftLocked(user)
	}
	if used := len(e.mu.usage[user]); limit > 0 && used >= limit {
		return &fencing.Refusal{
			SQLState: stateLimitExceeded,
			Message: fmt.Sprintf("role %s may not use resource %s: it uses %d others at this proxy, and the limit is %d",
				strconv.QuoteToASCII(user), strconv.QuoteToASCII(key.name), used, limit),
			Hint: fmt.Sprintf("Close the connections of another resource, which stops counting %v later (limits.resource_idle). "+
				"Or list the resource in Fencepost's setting resources, where it does not count, or raise limits.resources_per_user.", e.cfg.Idle),
		}
	}
	e.mu.usage.add(user, key)
	return nil
}

// endReservation ends the reservation: a resource that is not open does not count.
func (e *Elections) endReservation(user string, key resourceKey) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.resources[key] == nil {
		e.mu.usage.remove(user, key)
		return
	}
	e.mu.usage.add(user, key) // another connection's failure may have removed it
}

// dropLeftLocked stops counting the resources that a role has left and that only others
// still use. e.mu is held.
func (e *Elections) dropLeftLocked(user string) {
	for key := range e.mu.usage[user] {
		r := e.mu.resources[key]
		if r == nil || r.joining > 0 {
			continue // being opened or joined
		}
		r.mu.Lock()
		left := r.mu.servesOthersOnly(user)
		r.mu.Unlock()
		if left {
			e.mu.usage.remove(user, key)
		}
	}
}

// whenIdle says when a changed resources.<name>.election counts.
const whenIdle = "That takes effect when no one has been connected for the resource here for limits.resource_idle, or after a restart of this Fencepost."

// admitToken returns a *fencing.Refusal if req brings a token where none is taken, or asks for
// what a resource without leases does not have. Who brings none only observes there.
func (r *resource) admitToken(req *fencing.JoinRequest) error {
	refusal := func(hint, format string, args ...any) error {
		return &fencing.Refusal{SQLState: stateInvalidValue, Message: fmt.Sprintf(format, args...), Hint: hint}
	}
	resource := strconv.QuoteToASCII(r.key.name)
	switch {
	case r.tokenProvider == nil && req.Token != 0 && r.settings().Tokens:
		return refusal("resources.<name>.election is token in Fencepost's configuration since this Fencepost has first used the resource. "+whenIdle,
			"fencepost.token is set, but the leader of resource %s is still elected by leases", resource)
	case r.tokenProvider == nil && req.Token != 0:
		return refusal("Leave it out, or set resources.<name>.election: token in Fencepost's configuration.",
			"fencepost.token is set, but the leader of resource %s is elected by leases", resource)
	case r.tokenProvider == nil:
		return nil
	case req.WorkerTimeout > 0:
		return refusal("Leave it out: the application's own elector says who leads.",
			"fencepost.worker_timeout is set, but resource %s has no leases", resource)
	case req.Heartbeat > 0:
		return refusal("Leave it out: the application's own elector says who leads.",
			"fencepost.heartbeat is set, but resource %s has no leases", resource)
	case req.Token == 0 && req.Campaign == fencing.CampaignWait:
		return refusal("Set fencepost.token to the token from the application's elector.",
			"fencepost.campaign is wait, but the connection has brought no token for resource %s", resource)
	case req.Token == 0:
		req.Campaign = fencing.CampaignOff
	case req.Campaign == fencing.CampaignOff:
		req.Token = 0
	}
	return nil
}

// tokenIncarnation returns the incarnation of a candidacy that brings a token, or a *fencing.Refusal if the
// token is lower than the recorded one, or too high.
func (r *resource) tokenIncarnation(ctx context.Context, req fencing.JoinRequest, rec fencing.Record) (incarnation string, err error) {
	generation, err := r.tokenProvider.Generation(ctx)
	if err != nil {
		return "", err
	}
	incarnation = fencing.TokenIncarnation(generation, req.Token)
	if lower := fencing.LowerToken(r.key.name, req.Worker, incarnation, rec); lower != nil {
		return "", lower
	}
	if most := r.settings().MaxJump; most > 0 && rec.Generation == generation && req.Token-rec.Index > most {
		return "", fencing.TokenJump(r.key.name, req.Token, rec.Index, most)
	}
	return incarnation, nil
}
