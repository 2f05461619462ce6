package protocol_test

import (
	"errors"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/wire"
)

// FuzzSession gives a session bytes of both sides, in turns and in pieces. It must not panic, nor fail to take anything for
// ever, whatever they are.
func FuzzSession(f *testing.F) {
	ok := Cat(wire.AppendCommandComplete(nil, "SET"), ready('I'))
	f.Add(Cat(Q("select 1"), Batch(Run("begin; commit")), Sync()), Cat(ok, ok, ok), byte(0))
	f.Add(Cat(Q("begin read write; select 1; commit; vacuum"), Batch(Run("select 1"), Run("commit"), Run("select 2"))), Cat(ok, ok, failure("25006", "x"), ready('E'), ready('T')), byte(3))
	f.Add(Cat(Batch(Parse("a", "insert into t values (1)"), Bind("p", "a"), Exec("p", 0), Shut('S', "a")), []byte("F\x00\x00\x00\x08abcd"), Q("show fencepost.role")), Cat(ok, []byte("G\x00\x00\x00\x04"), failure("42601", `"fencepost_refused"`), ready('I')), byte(18))
	f.Add(Cat(Q("insert into t values (1)"), Batch(Run("delete from t"), Run("select 1")), Q("truncate t")), Cat([]byte("1\x00\x00\x00\x04t\x00\x00\x00\x06\x00\x00n\x00\x00\x00\x04"), ready('I'), []byte("3\x00\x00\x00\x04"), ok, ok), byte(14))
	f.Fuzz(func(t *testing.T, client, server []byte, how byte) {
		st := []*fencing.Status{follower, leader(9), {Vacant: true}, {Lapsed: true, Epoch: 9}, superseded}[how%5]
		s := protocol.New(protocol.Config{
			Mode: protocol.Mode(how >> 2 & 1), Version: gate.Version(15 + how>>3&1*3), Candidacy: protocol.Candidacy{Status: func() *fencing.Status { return st }, Announced: fencing.Epoch(how >> 4 & 1 * 9)}, Cache: sqltext.NewCache(1 << 16),
			Unfenced: fencing.UnfencedRefusal("u"), Registered: how>>5&1 == 1, Tables: how>>3&1 == 1, Discards: true,
		})
		piece := int(how>>6) * 7
		for range 200 {
			var p gate.Plan
			in := client[:min(len(client), max(piece, 1)*20)]
			p.Reset(in)
			n, need, err := s.FromClient(in, &p)
			if errors.Is(err, protocol.ErrBug) {
				t.Fatal(err)
			}
			if client = client[n:]; err != nil || need.Kind == protocol.NeedTerminal {
				return
			}
			if need.Kind == protocol.NeedUnregister {
				s.Unregistered()
				continue
			}
			a := protocol.Answer{Need: need.Kind}
			if need.Kind == protocol.NeedAnalysis {
				a.Text = sqltext.Analyze(need.Text, need.Settings)
			}
			if need.Kind != protocol.NeedMore && need.Kind != protocol.NeedRoom && need.Kind != protocol.NeedNothing {
				s.Answer(a)
				continue
			}
			var out gate.Segments
			in = server[:min(len(server), 30+piece)]
			out.Reset(in)
			n, events, err := s.FromServer(in, &out)
			if errors.Is(err, protocol.ErrBug) {
				t.Fatal(err)
			}
			for _, e := range events {
				if e.Kind == protocol.EventAnnounce {
					s.Announced()
				}
			}
			if server = server[n:]; err != nil {
				return
			}
			_, _ = s.Attempt(client), s.InFlight()
		}
	})
}
