package protocol

import (
	"strconv"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// setSQL gives the server the value that SHOW fencepost.<name> is to show. SET
// takes no snapshot, so it may stand in front of anything.
func (m *Machine) setSQL(name string) string {
	var v string
	st := m.inHand.status
	switch name {
	case "role":
		v = shownRole(st)
	case "epoch":
		v = strconv.FormatInt(int64(shownEpoch(st)), 10)
	case "worker":
		v = m.config.Worker
	case "resource":
		v = m.config.Resource
	default:
		return "SELECT 1" // not a parameter of Fencepost's: the server says so
	}
	return "SET fencepost." + name + " TO " + fencing.Literal(v)
}

// shownRole is what a worker is told of st.
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

// announceBy marks a reply that tells the client an epoch.
func (m *Machine) announceBy(e *reply, s *statement) {
	if m.config.Mode != ModeFenced || !s.known {
		return
	}
	switch {
	case s.info.Kind == sqltext.ShowFence && (s.info.Name == "role" || s.info.Name == "epoch"):
		e.announces, e.announced = true, shownEpoch(m.inHand.status)
	case s.info.Kind == sqltext.SetFence && s.info.Name == "epoch":
		if n, err := strconv.ParseInt(s.info.Value, 10, 64); err == nil && n >= 0 {
			e.announces, e.announced = true, fencing.Epoch(n)
		}
	}
}
