package refusals

import (
	"fmt"
	"io"
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
		l := NewLog(zap.New(core), func(string) {})
		from := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4711}
		client := func(user, database string) Client { return Client{from, user, database} }
		shop := client("app", "shop")
		lines := func() int { return len(log.TakeAll()) }
		for range 100 {
			l.Refused(TooManyClients, shop)
			l.Refused(TooManyClients, client("app", "other"))
			l.Refused(ErrPacketLength, Client{Addr: from})
			l.Refused(ShuttingDown, shop)
			l.Refused(io.EOF, shop) // the client has gone
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
		l.Refused(TooManyClients, shop)
		l.Refused(TooManyClients, shop)
		if n := lines(); n != 1 {
			t.Errorf("a minute later, the log has %d lines", n)
		}
		for i := range 10 * maxKeys {
			l.Refused(TooManyClients, client(fmt.Sprint("u", i), "shop"))
		}
		if n := lines(); n > maxKeys+1 || len(l.series) > maxKeys+1 {
			t.Errorf("many names make for %d lines and %d series", n, len(l.series))
		}
		time.Sleep(2 * faults.Interval)
		l.Refused(TooManyClients, client("late", "shop"))
		if n := len(l.series); n != 1 || lines() != 1 {
			t.Errorf("after that, there are %d series", n)
		}
	})
}
