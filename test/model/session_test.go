package model

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/oracle"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// The fence and the candidacy of every session of the model.
const (
	modelFence       = 7
	modelIncarnation = "i"
)

// session is a client, a machine, the model server and the judge between the two.
type session struct {
	m     *protocol.Machine
	srv   *backend
	judge *oracle.Observer
	st    *fencing.Status
	// wrong is the first complaint of the judge, and lost says why the machine gave the
	// session up, or did not go on, which is no danger.
	wrong, lost string

	client     []byte // what the client has sent and the machine has not taken
	arrived    int    // how much of it the machine may see
	toClient   []byte // what the server has sent and the machine has not taken
	came       int    // how much of it the machine may see
	registered bool
	over       bool

	up      gate.Plan
	down    gate.Segments
	scratch []byte
	played  strings.Builder
}

// standing is what a session begins with.
type standing struct {
	mode    protocol.Mode
	version int
	leads   bool
	vacant  bool
	// discards: stale writes are discarded.
	discards bool
}

// firstEpoch is granted before each session: to its candidacy, or to another.
const firstEpoch = 5

func newSession(c standing) *session {
	s := &session{srv: newBackend(c.version, firstEpoch), st: &fencing.Status{}}
	if c.mode == protocol.ModeFenced {
		s.st = &fencing.Status{Role: fencing.Follower, Vacant: c.vacant, Holder: fencing.Record{Epoch: firstEpoch, Worker: "other"}}
		if c.leads {
			s.st = leading(firstEpoch)
		}
	}
	s.judge = oracle.New(oracle.Facts{
		Version: c.version, Fenced: c.mode == protocol.ModeFenced, Fence: modelFence, Incarnation: modelIncarnation,
		Database: "d", User: "u",
	}, s.complain)
	config := protocol.Config{
		Mode: c.mode, Version: gate.Version(c.version), Status: func() *fencing.Status { return s.st }, Cache: analyses,
		Unfenced: &fencing.Refusal{SQLState: fencing.StateNotLeader, Message: "only reads"},
	}
	if c.mode == protocol.ModeFenced {
		config.Discards = c.discards
		config.Fence, config.Resource, config.Worker, config.Incarnation = modelFence, "r", "w", modelIncarnation
	}
	s.m = protocol.New(config)
	s.send(s.m.AppendPrepare(nil))
	s.serve()
	s.judge.Received(s.srv.out)
	s.srv.out = nil
	_ = s.m.Prepared(nil)
	var announced fencing.Epoch
	if s.st.CanWrite() {
		announced = s.st.Epoch
	}
	s.m.AppendGreeting(nil, s.st, announced)
	return s
}

// analyses are shared by the sessions, as in a proxy.
var analyses = sqltext.NewCache(16 << 20)

// leading is the status of a candidacy that was granted that epoch and leads.
func leading(e fencing.Epoch) *fencing.Status {
	return &fencing.Status{Role: fencing.Leader, Epoch: e, Holder: fencing.Record{Epoch: e, Worker: "w"}}
}

// complain ends the session.
func (s *session) complain(what string) {
	s.over = true
	if s.wrong == "" {
		s.wrong = what
	}
}

// lose ends the session too.
func (s *session) lose(format string, args ...any) {
	s.over, s.lost = true, fmt.Sprintf(format, args...)
}

// note keeps what has happened, for a complaint.
func (s *session) note(format string, args ...any) { fmt.Fprintf(&s.played, format+"\n", args...) }

// send shows the judge what goes to the server, and sends it.
func (s *session) send(b []byte) {
	if len(b) == 0 {
		return
	}
	if err := s.judge.Sent(b); err != nil {
		s.complain(err.Error())
		return
	}
	s.srv.in = append(s.srv.in, b...)
}

// arrive lets the machine see n more bytes of the client's.
func (s *session) arrive(n int) {
	s.arrived = min(s.arrived+n, len(s.client))
	for stuck := 0; !s.over; {
		in := s.client[:s.arrived]
		s.up.Reset(in)
		n, need, err := s.m.FromClient(in, &s.up)
		var out []byte
		out, s.scratch = s.up.Bytes(s.scratch)
		s.send(out)
		s.client, s.arrived = s.client[n:], s.arrived-n
		switch {
		case errors.Is(err, protocol.ErrBug):
			s.complain(err.Error())
		case err != nil, need.Kind == protocol.NeedTerminal:
			s.over = true
		case need.Kind == protocol.NeedMore, need.Kind == protocol.NeedNothing:
			return
		default:
			if stuck++; n > 0 || len(out) > 0 {
				stuck = 0
			}
			if stuck > 10 {
				s.lose("the machine asks for need %d again and again", need.Kind)
			}
			s.meet(need)
		}
	}
}

// meet does what the machine needs.
func (s *session) meet(need protocol.Need) {
	s.note("= need %d", need.Kind)
	switch need.Kind {
	case protocol.NeedRoom:
		for !s.m.Is(protocol.Ready) && !s.over {
			if !s.serve() && len(s.srv.out)+len(s.toClient) == 0 {
				s.lose("the machine waits for the server, and the server for the client")
				return
			}
			s.deliver(len(s.toClient) + len(s.srv.out))
		}
	case protocol.NeedRegister:
		r := s.m.RegisterRequest()
		if r.Announced == 0 || r.Announced != r.Held || int64(r.Held) != s.srv.epoch {
			s.m.Answer(protocol.Answer{Need: need.Kind, Refusal: &fencing.Refusal{SQLState: fencing.StateNotLeader, Message: "the registry refuses"}})
			return
		}
		s.registered = true
		s.m.Answer(protocol.Answer{Need: need.Kind})
		s.judge.Registered(int64(r.Announced))
	case protocol.NeedAnalysis:
		s.m.Answer(protocol.Answer{Need: need.Kind, Text: analyses.Analyze(need.Text, need.Settings)})
	default:
		s.m.Answer(protocol.Answer{Need: need.Kind})
	}
}

// serve lets the server process all that it was sent.
func (s *session) serve() (some bool) {
	for s.srv.step() {
		some = true
	}
	return some
}

// deliver lets the machine see n more bytes of the server's.
func (s *session) deliver(n int) {
	if s.over {
		return
	}
	s.toClient = append(s.toClient, s.srv.out...)
	s.srv.out = s.srv.out[:0]
	was := s.came
	s.came = min(s.came+n, len(s.toClient))
	s.judge.Received(s.toClient[was:s.came])
	if s.over {
		return
	}
	in := s.toClient[:s.came]
	s.down.Reset(in)
	taken, events, err := s.m.FromServer(in, &s.down)
	if err != nil {
		s.lose("the machine: %v", err)
		return
	}
	for i := range events {
		switch events[i].Kind {
		case protocol.EventUnregister:
			s.registered = false
			s.judge.Unregistered()
		case protocol.EventAnnounce:
			if len(s.client) == 0 && s.m.Is(protocol.Quiet) {
				s.m.Announced()
			}
		case protocol.EventEnded, protocol.EventSuperseded:
			s.over = true
		}
	}
	s.toClient, s.came = s.toClient[taken:], s.came-taken
	if s.m.Is(protocol.ReplayDue) && !s.over {
		s.arrive(0)
	}
}

// settle lets all come to rest.
func (s *session) settle() {
	for !s.over {
		s.arrive(len(s.client))
		if some := s.serve(); !some && len(s.srv.out) == 0 && s.came == len(s.toClient) {
			return
		}
		s.deliver(len(s.toClient) + len(s.srv.out))
	}
}

// lease changes what the candidacy or the fence is.
func (s *session) lease(event byte) {
	if s.st.Role == fencing.Superseded || s.m == nil {
		return
	}
	switch event % 4 {
	case 0: // gained, or confirmed again
		if s.st.Epoch == 0 {
			s.grant()
			s.st = leading(fencing.Epoch(s.srv.epoch))
		} else {
			s.st = leading(s.st.Epoch)
		}
	case 1: // lapsed
		if s.st.Epoch != 0 {
			s.st = &fencing.Status{Role: fencing.Follower, Epoch: s.st.Epoch, Lapsed: true, Holder: fencing.Record{Epoch: s.st.Epoch, Worker: "w"}}
		}
	case 2: // another was granted an epoch, and the candidacy does not know
		s.grant()
	case 3: // vacant
		if s.st.Epoch == 0 {
			s.st = &fencing.Status{Role: fencing.Follower, Vacant: true}
		}
	}
}

// grant records a new epoch. It ends whoever was checked, and who is registered.
func (s *session) grant() {
	if s.srv.txn.locked || s.registered {
		s.srv.die("57P01", "terminating connection due to administrator command")
	}
	s.srv.epoch++
}
