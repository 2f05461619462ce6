package system

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

// socketIn returns the path of a socket as clients look for it at port 6432.
func socketIn(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fp") // the directory of the test may be too deep
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, ".s.PGSQL.6432")
}

// TestServeOnUnixSockets: workers and Fencepost itself use Unix sockets, and all local clients
// are one address.
func TestServeOnUnixSockets(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	path, tcp := socketIn(t), ""
	postgres := filepath.Join(h.pg.SocketDir(), fmt.Sprintf(".s.PGSQL.%d", h.pg.Port()))
	p := h.proxy("LISTEN=127.0.0.1:0, unix:"+path, "LISTEN_MODE=0700", "UPSTREAM_ADDRESS="+postgres)
	tcp, p.Address = p.Address, path
	awaitOK(t, p, "/readyz")
	if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeSocket|0o700 {
		t.Errorf("the socket: %v, %v", info.Mode(), err)
	}
	first := h.join(p, "twin", "campaign", "wait")
	first.must("INSERT INTO work VALUES ('first')")
	h.join(p, "twin").must("SELECT 1")
	p.Address = tcp
	_, err := h.tryJoin(process.Patience, p, "twin")
	if f := failureOf(err); f == nil || f.Code != fencing.StateUnfenceable || !strings.Contains(f.Message, "connected from local ") {
		t.Errorf("the same worker over TCP: %+v, want ZF005 that names the local client", f)
	}
	h.join(p, "other over TCP").must("SELECT 1")
	// The case's own connections, which made its table, may take a moment to end.
	process.Eventually(t, process.Patience, "all connections to Postgres but that of this question to be local", func() bool {
		return ask[int](h, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND client_addr IS NOT NULL AND pid <> pg_backend_pid()") == 0
	})
	p.End()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket after the end: %v, want none", err)
	}
}
