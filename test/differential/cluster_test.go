package differential

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/oracle"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// cluster is two proxies in front of a real Postgres. The tests decide who is granted an
// epoch; the fence in the database is real.
type cluster struct {
	*fixture.FakeElector
	pg    *pgtest.Server
	addr  string
	other string // the address of the second proxy
}

// newCluster starts a proxy in front of the server of that major version.
func newCluster(t *testing.T, major int) *cluster {
	t.Helper()
	return newClusterAt(t, pgtest.SharedMajor(t, major))
}

// socketOf returns the path of a server's Unix socket. A server that closes a
// connection with unread input resets it. Over TCP, a reset discards what the server
// has sent but the client has not received, for any client, so a loss in Fencepost
// could not be distinguished from one in the network. A reset of a Unix socket discards
// nothing.
func socketOf(pg *pgtest.Server) string {
	return filepath.Join(pg.SocketDir(), ".s.PGSQL."+strconv.Itoa(pg.Port()))
}

func newClusterAt(t *testing.T, pg *pgtest.Server) *cluster {
	t.Helper()
	h := &cluster{FakeElector: fixture.NewFakeElector(t, pg), pg: pg}
	h.addr, h.other = h.serve(t, "one"), h.serve(t, "two")
	return h
}

// serve starts a proxy, which ends with the test, and returns its address.
func (h *cluster) serve(t *testing.T, id string) string {
	t.Helper()
	_, addr := fixture.Serve(t, proxy.Config{
		Upstream: fixture.At(t, socketOf(h.pg), nil), Candidates: h, ProxyID: id,
		Observe: func(o proxy.Observed) proxy.Observer {
			return oracle.New(oracle.Facts(o), func(complaint string) { t.Error(complaint) })
		},
	})
	return addr
}
