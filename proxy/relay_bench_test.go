package proxy

import (
	"context"
	"io"
	"net"
	"testing"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/wire"
)

// BenchmarkRelay relays a Query and its reply through the event loop.
func BenchmarkRelay(b *testing.B) {
	loops, err := netloop.Start()
	if err != nil {
		b.Fatal(err)
	}
	defer loops.Close()
	ends := func() (peer net.Conn, own netloop.Conn) {
		peer, other := wiretest.Pair(b)
		own, err := loops.Pick().Adopt(other)
		if err != nil {
			b.Fatal(err)
		}
		return peer, own
	}
	app, client := ends()
	postgres, server := ends()
	s := &Server{cfg: Config{Logger: zap.NewNop()}, crews: newCrews()}
	defer s.crews.close()
	x := newSession(s, client, server, &startup{})
	x.m = protocol.New(protocol.Config{Mode: protocol.ModePassing, Version: 18, Cache: sqltext.NewCache(1 << 10)})
	x.life.advance(phaseServing)
	x.active.busy.Store(false)
	ended := make(chan struct{})
	go func() { defer close(ended); x.run(context.Background()) }()

	query := []byte("Q\x00\x00\x00\x0dSELECT 1\x00")
	reply := wire.AppendReadyForQuery([]byte("C\x00\x00\x00\x0dSELECT 1\x00"), 'I')
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer postgres.Close()
		in := make([]byte, len(query))
		for {
			if _, err := io.ReadFull(postgres, in); err != nil {
				return
			}
			if _, err := postgres.Write(reply); err != nil {
				return
			}
		}
	}()
	in := make([]byte, len(reply))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := app.Write(query); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(app, in); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	_ = app.Close()
	<-ended
	<-served
}
