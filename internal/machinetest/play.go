package machinetest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/wire"
)

// player is a machine in a conversation.
type player struct {
	m       *protocol.Machine
	st      *fencing.Status
	text    strings.Builder
	part    string // the random part of the names that the machine used last
	client  []byte // what the machine has not taken of the client
	server  []byte // and of the server
	stuck   bool   // it waits for the server before it takes more
	left    bool   // the client has said that it leaves
	over    bool
	fatal   []byte // the server's last message, if that has ended the session
	scratch []byte
	// send sends to a real server. It is nil in a replay.
	send func([]byte)
	// What the server and the client got.
	up, down []byte
}

// analyses are shared by all machines, as those of a proxy.
var analyses = sqltext.NewCache(16 << 20)

var modes = map[string]protocol.Mode{"": protocol.ModeFenced, "passing": protocol.ModePassing, "read-only": protocol.ModeReadOnly}

// Play lets the inputs happen to a new machine. It returns the transcript, and what the
// server and the client got, with the placeholder in the names of the checks.
func Play(s Session, inputs []Input) (text string, toServer, toClient []byte, err error) {
	x := newPlayer(s)
	x.learn(x.m.AppendPrepare(nil))
	x.begin(s)
	for _, in := range inputs {
		if x.over {
			break
		}
		if err := x.take(in); err != nil {
			return x.text.String(), nil, nil, err
		}
	}
	return x.text.String(), x.up, x.down, nil
}

// newPlayer returns a player with the machine of a session that has not begun.
func newPlayer(s Session) *player {
	x := &player{st: &s.Status}
	x.m = protocol.New(protocol.Config{
		Mode: modes[s.Mode], Discards: s.Discards, Unfenced: fencing.UnfencedRefusal("u"), Version: gate.Version(s.Version), Status: func() *fencing.Status { return x.st }, Cache: analyses,
		Fence: s.Fence, Resource: "r", Worker: s.Worker, Incarnation: s.Incarnation,
		Parameters: [][]byte{parameter("standard_conforming_strings", s.Strings), parameter("client_encoding", s.Encoding)},
	})
	return x
}

// begin begins the session: its checks are prepared, and its client knows the epoch.
func (x *player) begin(s Session) {
	_ = x.m.Prepared(nil)
	var announced fencing.Epoch
	if x.st.CanWrite() {
		announced = x.st.Epoch
	}
	x.m.AppendGreeting(nil, x.st, announced)
	fmt.Fprintln(&x.text, s)
}

func parameter(name, value string) []byte {
	return wire.AppendParameterStatus(nil, name, value)[wire.HeaderLen:]
}

// learn learns the random part of the names from what goes to the server.
func (x *player) learn(b []byte) {
	if all := random.FindAllSubmatch(b, -1); len(all) > 0 {
		x.part = string(all[len(all)-1][2])
	}
}

func (x *player) take(in Input) error {
	switch in.Side {
	case Status:
		st := in.Status
		x.st = &st
		fmt.Fprintf(&x.text, "= %s\n", statusLine(st))
		return nil
	case Client:
		if x.left {
			return nil
		}
		if err := lines(&x.text, "C>", in.Bytes); err != nil {
			return err
		}
		x.client = append(x.client, in.Bytes...)
		if x.stuck {
			return nil
		}
		return x.fromClient()
	default:
		if err := lines(&x.text, "S>", Placed(in.Bytes)); err != nil {
			return err
		}
		x.server = append(x.server, named(in.Bytes, x.part)...)
		return x.fromServer()
	}
}

func (x *player) end(why string) {
	x.over = true
	fmt.Fprintf(&x.text, "= %s\n", why)
}

func (x *player) fromClient() error {
	var p gate.Plan
	for !x.over {
		p.Reset(x.client)
		n, need, err := x.m.FromClient(x.client, &p)
		var out []byte
		out, x.scratch = p.Bytes(x.scratch)
		x.learn(out)
		if x.send != nil {
			x.send(out)
		}
		out = Placed(out)
		x.up = append(x.up, out...)
		if err := lines(&x.text, "=>", out); err != nil {
			return err
		}
		x.client = bytes.Clone(x.client[n:])
		x.stuck = false
		switch {
		case errors.Is(err, protocol.ErrBug):
			return err
		case err != nil:
			x.end("ended: " + err.Error())
		case need.Kind == protocol.NeedTerminal:
			x.left = true
			return nil
		case need.Kind == protocol.NeedNothing, need.Kind == protocol.NeedMore:
			return nil
		case need.Kind == protocol.NeedRoom:
			x.stuck = true
			return nil
		case need.Kind == protocol.NeedRegister:
			x.register()
		case need.Kind == protocol.NeedAnalysis:
			x.m.Answer(protocol.Answer{Need: need.Kind, Text: analyses.Analyze(need.Text, need.Settings)})
		default:
			x.m.Answer(protocol.Answer{Need: need.Kind})
		}
	}
	return nil
}

// register answers for the registry: it takes who leads.
func (x *player) register() {
	if r := x.m.RegisterRequest(); r.Announced == 0 || r.Announced != r.Held {
		fmt.Fprintln(&x.text, "= registry refuses")
		x.m.Answer(protocol.Answer{Need: protocol.NeedRegister, Refusal: &fencing.Refusal{SQLState: fencing.StateNotLeader, Message: "the registry refuses"}})
		return
	}
	fmt.Fprintln(&x.text, "= registered")
	x.m.Answer(protocol.Answer{Need: protocol.NeedRegister})
}

func (x *player) fromServer() error {
	var p gate.Segments
	p.Reset(x.server)
	n, events, err := x.m.FromServer(x.server, &p)
	var out []byte
	out, x.scratch = p.Bytes(x.scratch)
	out = Placed(out)
	x.down = append(x.down, out...)
	if err := lines(&x.text, "<=", out); err != nil {
		return err
	}
	x.server = bytes.Clone(x.server[n:])
	if err != nil {
		x.end("ended: " + err.Error())
		return nil
	}
	for i := range events {
		switch events[i].Kind {
		case protocol.EventUnregister:
			fmt.Fprintln(&x.text, "= unregistered")
		case protocol.EventAnnounce:
			if len(x.client) == 0 && x.m.Is(protocol.Quiet) {
				fmt.Fprintln(&x.text, "= announced")
				x.m.Announced()
			}
		case protocol.EventEnded, protocol.EventSuperseded:
			x.fatal = bytes.Clone(events[i].Message)
			x.end("ended")
		}
	}
	if x.over || !x.m.Is(protocol.ReplayDue) && !(x.stuck && x.m.Is(protocol.Ready)) {
		return nil
	}
	return x.fromClient()
}
