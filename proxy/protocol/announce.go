package protocol

import (
	"strconv"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/wire"
)

// announced follows which epoch the client knows. A worker is registered under the epoch that was
// announced to it while nothing of its was pending.
type announced struct {
	current    fencing.Epoch
	pending    fencing.Epoch // by a reply that was sent
	hasPending bool
}

func (a *announced) expect(e fencing.Epoch) { a.pending, a.hasPending = e, true }

// followAnnouncing follows a statement whose reply may announce an epoch to the client, or by which the client says
// which one it knows. It has succeeded.
func (s *Session) followAnnouncing(st *sqltext.Statement) {
	switch {
	case st.Kind == sqltext.ShowFence && s.shows(st):
		for _, one := range s.currentChoice().all {
			one.epochs.expect(one.shown)
		}
	case st.Kind == sqltext.SetFence && s.config.Mode == ModeFenced:
		if e, ok := epochOf(st); st.Name == "epoch" && ok {
			s.startup.epochs.expect(e)
		}
		s.settings.shown.overwrites(st) // the server has the client's value
	}
}

// epochOf is the epoch that a SET fencepost.epoch names.
func epochOf(st *sqltext.Statement) (e fencing.Epoch, ok bool) {
	n, err := strconv.ParseInt(st.Value, 10, 64)
	return fencing.Epoch(n), err == nil && n >= 0
}

// reported is what ParameterStatus messages last reported to the client.
type reported struct {
	status                *fencing.Status // of the startup's candidacy
	choice                *choice
	role, epoch, resource string
}

// report appends the parameters that have changed since they were last reported to the client.
func (s *Session) report(dst []byte) []byte {
	if s.config.Mode != ModeFenced {
		return dst
	}
	was, c, now := &s.reported, s.currentChoice(), s.startup.Status()
	if c == &s.choices.startup && was.choice == c && was.status == now {
		return dst
	}
	was.status, was.choice = now, c
	dst = changed(dst, "fencepost.role", &was.role, c.role())
	dst = changed(dst, "fencepost.epoch", &was.epoch, c.epochs())
	return changed(dst, "fencepost.resource", &was.resource, fencing.ASCII(c.shownResource()))
}

func changed(dst []byte, name string, was *string, now string) []byte {
	if *was == now {
		return dst
	}
	*was = now
	return wire.AppendParameterStatus(dst, name, now)
}

// AppendGreeting appends the parameters with the client's resource, worker, role and epoch.
func (s *Session) AppendGreeting(dst []byte) []byte {
	if s.config.Mode != ModeFenced {
		return dst
	}
	s.reported.resource = fencing.ASCII(s.startup.Resource)
	dst = wire.AppendParameterStatus(dst, "fencepost.resource", s.reported.resource)
	dst = wire.AppendParameterStatus(dst, "fencepost.worker", fencing.ASCII(s.config.Worker))
	return s.report(dst)
}

// shownRole is the role in st as SHOW fencepost.role shows it.
func shownRole(st *fencing.Status) string {
	if st.Role == fencing.Leader && !st.CanWrite() {
		return fencing.Follower.String()
	}
	return st.Role.String()
}

// shownEpoch is the epoch under which a worker that knows st may write.
func shownEpoch(st *fencing.Status) fencing.Epoch {
	if st.CanWrite() {
		return st.Epoch
	}
	return 0
}
