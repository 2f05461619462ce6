package proxy

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencepost/fencepost/internal/faults"
)

// TestRefusedConnectionsAreLoggedOnceAMinute for each reason, user and database, as long as there are few names.
func TestRefusedConnectionsAreLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, log := observer.New(zap.WarnLevel)
		s := &Server{cfg: Config{Metrics: noMetrics{}}, refusals: newRefusals(zap.New(core))}
		from := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4711}
		shop := &startup{user: "app", database: "shop"}
		lines := func() int { return len(log.TakeAll()) }
		for range 100 {
			s.refused(tooManyClients, shop, from)
			s.refused(tooManyClients, &startup{user: "app", database: "other"}, from)
			s.refused(errPacketLength, nil, from)
			s.refused(shuttingDown, shop, from)
			s.refused(errOver, shop, from) // the client has gone
		}
		all := log.TakeAll()
		if len(all) != 3 {
			t.Fatalf("the log has %d lines: %v", len(all), all)
		}
		got := fmt.Sprint(all[0].Message, all[0].ContextMap())
		if want := `connection refusedmap[client:10.0.0.1:4711 database:shop hint:Raise limits.max_connections in Fencepost's configuration. ` +
			`message:sorry, too many clients already reason:limit sqlstate:53300 user:app]`; got != want {
			t.Errorf("the log has %s, want %s", got, want)
		}
		time.Sleep(faults.Interval)
		s.refused(tooManyClients, shop, from)
		s.refused(tooManyClients, shop, from)
		if n := lines(); n != 1 {
			t.Errorf("a minute later, the log has %d lines", n)
		}
		for i := range 10 * maxRefused {
			s.refused(tooManyClients, &startup{user: fmt.Sprint("u", i), database: "shop"}, from)
		}
		if n := lines(); n > maxRefused+1 || len(s.refusals.series) > maxRefused+1 {
			t.Errorf("many names make for %d lines and %d series", n, len(s.refusals.series))
		}
		time.Sleep(2 * faults.Interval)
		s.refused(tooManyClients, &startup{user: "late", database: "shop"}, from)
		if n := len(s.refusals.series); n != 1 || lines() != 1 {
			t.Errorf("after that, there are %d series", n)
		}
	})
}
