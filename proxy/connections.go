package proxy

import (
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// Connection is one client of a Server. Most of its texts are as the client has sent them.
type Connection struct {
	// Session is its id in the log and the audit log. It is "", and so are the texts that the client has sent, until
	// Fencepost has connected to Postgres for it.
	Session         string `json:"session,omitempty"`
	Database        string `json:"database"`
	User            string `json:"user"`
	Client          string `json:"client"` // its address
	ApplicationName string `json:"application_name"`
	// Resource is that of its startup, and Chosen are the others that it has named since. Resource and Worker are ""
	// before it has joined, and of a connection without a resource.
	Resource string   `json:"resource"`
	Chosen   []string `json:"chosen,omitempty"`
	Worker   string   `json:"worker"`
	// Role is "leader", "follower", "lapsed" (the lease is not confirmed), "superseded", "observer" (it does not
	// campaign), "unfenced" (it names no resource, or one in shadow that it could not join) or "console". It is ""
	// before the client has joined.
	Role string `json:"role"`
	// Fence says what refuses its writes, which the configuration decided when it began, and a reload does not change:
	// "session" (Fencepost, unless its worker leads), "tables" (of a worker that does not lead, only guards),
	// "read-only" (Fencepost, all of them), or nothing: "shadow" and "allow". It is "" before the client has joined.
	Fence string `json:"fence"`
	// State is "connecting", "waiting for the lead" (in the startup), "active" (a reply is pending, or a message has
	// arrived in part or waits), "in transaction" (it waits for the client), "idle" or "ending".
	State string `json:"state"`
	// Since is when the client last sent something, or when it got its last reply, whichever was later. In the startup,
	// it is Start, when the client connected.
	Since time.Time `json:"since"`
	Start time.Time `json:"start"`
	// Received and Sent are the bytes from and to the client, with its startup and TLS. Transactions are those that have
	// ended.
	Received     uint64 `json:"received_bytes"`
	Sent         uint64 `json:"sent_bytes"`
	Transactions uint64 `json:"transactions"`
}

// connecting is the State of a client in its startup.
const connecting = "connecting"

// Connecting reports whether the client is in its startup and does not wait for the lead.
func (c Connection) Connecting() bool { return c.State == connecting }

// Connections returns all clients, the oldest first.
func (s *Server) Connections() []Connection {
	s.mu.Lock()
	sessions, others := s.openLocked()
	all := make([]Connection, 0, len(sessions)+len(others))
	for _, conn := range others {
		a := s.mu.conns[conn]
		c := Connection{
			Client: a.from.String(), State: connecting, Since: stamp(a.at), Start: stamp(a.at),
			Received: conn.Received(), Sent: conn.Written(),
		}
		if a.console != nil {
			c.Database, c.User, c.ApplicationName = a.console.Database, a.console.User, a.console.ApplicationName()
			c.Role, c.State, c.Since = "console", "idle", stamp(a.lastSent)
		}
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, x := range sessions {
		all = append(all, x.connection())
	}
	slices.SortFunc(all, func(a, b Connection) int { return a.Start.Compare(b.Start) })
	return all
}

func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// connection describes the session. Only atomics and what mu guards are read of what the startup may still change.
func (x *session) connection() Connection {
	now := x.traffic()
	now.add(x.before)
	c := Connection{
		Session: x.id, Database: x.start.Database, User: x.start.User, Client: x.client.RemoteAddr().String(),
		ApplicationName: x.start.ApplicationName(), Start: stamp(x.start.Began),
		Received: now.Received, Sent: now.Sent, Transactions: now.Transactions,
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.m != nil || x.member.state.Load() != outside {
		c.Resource, c.Worker = x.member.request.Resource, x.member.request.Worker
		c.Chosen = slices.Sorted(maps.Keys(x.member.chosen))
		c.Role, c.Fence = x.role(), x.fence()
	}
	c.State, c.Since = x.stateLocked(), stamp(x.since)
	return c
}

// role is that of a session that has joined.
func (x *session) role() string {
	cand := x.member.candidacy()
	switch {
	case cand == nil:
		return "unfenced"
	case x.isSuperseded():
		return fencing.Superseded.String()
	case x.member.request.Campaign == fencing.CampaignOff:
		return "observer"
	}
	st := cand.Status()
	if st.Role == fencing.Follower && st.Lapsed {
		return "lapsed"
	}
	return st.Role.String()
}

// fence is Connection.Fence of a session that has joined.
func (x *session) fence() string {
	switch {
	case x.member.shadow != nil:
		return "shadow"
	case x.member.request.Resource != "" && x.member.tables:
		return "tables"
	case x.member.request.Resource != "":
		return "session"
	case x.unfenced == UnfencedAllow:
		return "allow"
	default:
		return "read-only"
	}
}

func (x *session) stateLocked() string {
	switch phase := x.life.phase(); {
	case phase == phaseEnding:
		return "ending"
	case phase == phaseStarting && x.active.waitingToLead.Load():
		return "waiting for the lead"
	case phase == phaseStarting:
		return connecting
	case x.m.Is(protocol.AtRest):
		return "idle"
	case x.m.Is(protocol.Quiet):
		return "in transaction"
	default:
		return "active"
	}
}

// Traffic is what clients have sent and got, and how many of their transactions have ended.
type Traffic struct{ Received, Sent, Transactions uint64 }

func (t *Traffic) add(u Traffic) {
	t.Received += u.Received
	t.Sent += u.Sent
	t.Transactions += u.Transactions
}

// traffic is that of the sessions of one database.
type traffic struct {
	ended Traffic // of those that have ended
	open  int     // how many have not
}

// maxDatabases is how many databases have their traffic kept, in addition to those that have sessions.
const maxDatabases = 100

func (x *session) traffic() Traffic {
	conn := socketBelow(x.client)
	return Traffic{conn.Received(), conn.Written(), x.active.transactions.Load()}
}

// Traffic returns the traffic of each database, of all sessions whose clients Postgres has let in. If there are more than
// maxDatabases, that of one without a session may begin at 0 again.
func (s *Server) Traffic() map[string]Traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]Traffic, len(s.mu.traffic))
	for database, t := range s.mu.traffic {
		all[database] = t.ended
	}
	for x := range s.mu.sessions {
		if x.greeted.Load() {
			sum := all[x.start.Database]
			sum.add(x.traffic())
			all[x.start.Database] = sum
		}
	}
	return all
}

// countGreeted says that Postgres has let a client in.
func (s *Server) countGreeted(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.mu.traffic[x.start.Database]
	if t == nil {
		t = &traffic{}
		s.mu.traffic[x.start.Database] = t
	}
	t.open++
	x.greeted.Store(true)
}

// countEndedLocked says that a session has ended.
func (s *Server) countEndedLocked(x *session) {
	if !x.greeted.Load() {
		return
	}
	t := s.mu.traffic[x.start.Database]
	t.ended.add(x.traffic())
	if t.open--; t.open == 0 && len(s.mu.traffic) > maxDatabases {
		delete(s.mu.traffic, x.start.Database)
	}
}

// logConnection writes a line about the client, if that is configured and the client was greeted.
func (x *session) logConnection(what string) {
	if !x.greeted.Load() || !x.srv.cfg.LogConnections() {
		return
	}
	c := x.connection()
	x.log().Info(what, zap.String("application_name", c.ApplicationName), zap.String("resource", c.Resource), zap.Strings("chosen", c.Chosen),
		zap.String("worker", c.Worker), zap.String("role", c.Role), zap.Duration("duration", time.Since(x.start.Began)),
		zap.Uint64("received_bytes", c.Received), zap.Uint64("sent_bytes", c.Sent), zap.Uint64("transactions", c.Transactions))
}
