package differential

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

func TestMain(m *testing.M) {
	pgtest.Yield()
	pgtest.Main(m)
}

// cluster is two proxies in front of a real Postgres, with the same elections.
type cluster struct {
	*fixture.Proxy
	other *fixture.Proxy
}

// newCluster starts the proxies in front of the server of that major version.
func newCluster(t *testing.T, major int) *cluster {
	t.Helper()
	return newClusterAt(t, pgtest.SharedMajor(t, major))
}

func newClusterAt(t *testing.T, pg *pgtest.Server) *cluster {
	t.Helper()
	change := func(cfg *proxy.Config) {
		cfg.Upstream = fixture.At(t, socketOf(pg), nil)
		cfg.Auditors = nil // they would keep what is refused in a long run
	}
	p := fixture.NewProxy(t, pg, change)
	p.Elector.SetGrace(20 * time.Millisecond)
	return &cluster{p, p.Beside(t, "two", change)}
}

// socketOf returns the path of a server's Unix socket. A server that closes a
// connection with unread input resets it. Over TCP, a reset discards what the server
// has sent but the client has not received, for any client, so a loss in Fencepost
// could not be distinguished from one in the network. A reset of a Unix socket discards
// nothing.
func socketOf(pg *pgtest.Server) string {
	return filepath.Join(pg.SocketDir(), ".s.PGSQL."+strconv.Itoa(pg.Port()))
}
