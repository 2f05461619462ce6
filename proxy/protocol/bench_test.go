package protocol_test

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/wire"
)

// exchanges are what a client sends and what the server answers to it.
func exchanges() map[string]struct{ client, server []byte } {
	row := []byte("D\x00\x00\x00\x06\x00\x00")
	reply := func(rows int) []byte {
		return Cat([]byte("T\x00\x00\x00\x06\x00\x00"), []byte(strings.Repeat(string(row), rows)), wire.AppendCommandComplete(nil, "SELECT 1"), ready('I'))
	}
	return map[string]struct{ client, server []byte }{
		"simple":   {Q("select * from c where id = 1"), reply(1)},
		"rows":     {Q("select * from c where id = 1"), reply(100)},
		"prepared": {Batch(Bind("", "s", "1"), Desc('P', ""), Exec("", 0)), Cat([]byte("2\x00\x00\x00\x04"), reply(1))},
	}
}

// BenchmarkSettled is what the core does for one SELECT and its reply, in a session that may only read.
func BenchmarkSettled(b *testing.B) {
	benchmark(b, protocol.Config{Version: 18, SetUp: true})
}

// BenchmarkRelay is the same in a leader's session.
func BenchmarkRelay(b *testing.B) {
	st := leader(9)
	benchmark(b, protocol.Config{
		Mode: protocol.ModeFenced, Version: 18, Registered: true, Worker: "w",
		Candidacy: protocol.Candidacy{Resource: "r", Incarnation: "i", Announced: 9, Status: func() *fencing.Status { return st }},
	})
}

func benchmark(b *testing.B, c protocol.Config) {
	c.Cache = sqltext.NewCache(1 << 20)
	for name, x := range exchanges() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			s := protocol.New(c)
			s.AppendGreeting(nil)
			var p gate.Plan
			var out gate.Segments
			for range b.N {
				p.Reset(x.client)
				if n, _, err := s.FromClient(x.client, &p); n < len(x.client) || err != nil {
					b.Fatal(n, err)
				}
				out.Reset(x.server)
				if n, _, err := s.FromServer(x.server, &out); n < len(x.server) || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}
