package system

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

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
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider)
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
		})
	}
}

// TestASocketOfAKilledProxyIsReplaced, and that of a living one is not.
func TestASocketOfAKilledProxyIsReplaced(t *testing.T) {
	t.Parallel()
	path := socketIn(t)
	h := newCluster(t, "postgres", with("LISTEN="+path))
	killed := h.proxy()
	if code, out := h.command("serve"); code != 1 || !strings.Contains(out, "setting listen") || !strings.Contains(out, "another process listens at "+path) {
		t.Errorf("serve at the socket of a living proxy: code %d: %s", code, out)
	}
	h.join(killed, "a").must("SELECT 1")
	killed.Kill(t)
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("the socket of the killed proxy: %v", err)
	}
	next := h.proxy()
	if !strings.HasSuffix(next.ID, ":"+path) {
		t.Errorf("the proxy calls itself %s, want the socket's path in it", next.ID)
	}
	h.join(next, "b").must("SELECT 1")
	file := filepath.Join(filepath.Dir(path), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.settings = append(h.settings, "FENCEPOST_LISTEN=127.0.0.1:0,"+file)
	if code, out := h.command("serve"); code != 1 || !strings.Contains(out, "exists and is no socket") {
		t.Errorf("serve at a plain file: code %d: %s", code, out)
	}
}

// TestWorkersBehindALoadBalancer: one worker id comes from one address, as the PROXY header
// says it.
func TestWorkersBehindALoadBalancer(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with("PROXY_PROTOCOL_TRUSTED=10.0.0.0/8, 127.0.0.1"))
	p := h.proxy()
	through := func(client, worker string) (*pgx.Conn, error) {
		config, err := pgx.ParseConfig(h.dsn(p, worker))
		if err != nil {
			t.Fatal(err)
		}
		config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil {
				_, err = io.WriteString(conn, "PROXY TCP4 "+client+" 192.0.2.1 51000 6432\r\n")
			}
			return conn, err
		}
		ctx, cancel := context.WithTimeout(t.Context(), process.Patience)
		defer cancel()
		conn, err := pgx.ConnectConfig(ctx, config)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
		}
		return conn, err
	}
	for _, worker := range []string{"twin", "twin"} {
		if _, err := through("203.0.113.7", worker); err != nil {
			t.Fatal(err)
		}
	}
	_, err := through("203.0.113.8", "twin")
	if f := failureOf(err); f == nil || f.Code != fencing.StateUnfenceable || !strings.Contains(f.Message, "connected from 203.0.113.7 ") {
		t.Errorf("the same worker through the same load balancer from 203.0.113.8: %+v, want ZF005 that names 203.0.113.7", f)
	}
	if _, err := through("203.0.113.8", "other"); err != nil {
		t.Errorf("another worker from 203.0.113.8: %v", err)
	}
	_, err = h.tryJoin(process.Patience, p, "bare")
	if f := failureOf(err); f == nil || f.Code != "08P01" || !strings.Contains(f.Hint, "proxy_protocol.trusted") {
		t.Errorf("without a header: %+v, want 08P01 that names the setting", f)
	}
	if _, body := p.Get(t, "/metrics"); !strings.Contains(body, `fencepost_connections_refused_total{reason="startup"} 1`) {
		t.Error("the refusal was not counted")
	}
	p.Signal(t, syscall.SIGTERM)
	p.Wait(t)
	if lines := p.Lines("trusted load balancer sent no valid PROXY header"); len(lines) != 1 || !strings.HasPrefix(lines[0].Text("from"), "127.0.0.1:") {
		t.Errorf("the log has the lines %v, want one that names 127.0.0.1", lines)
	}
}
