package admin

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/proxy"
)

// TestClientsThatReadNothingAreLeft. Meanwhile, they keep no more than some large answers in memory, and no small one waits
// for them. It is not parallel, because all servers share the bound.
func TestClientsThatReadNothingAreLeft(t *testing.T) {
	a := testServer(&Readiness{Ready: true})
	a.answerTimeout = 10 * time.Second
	a.Connections = func() []proxy.Connection {
		return []proxy.Connection{{Worker: strings.Repeat("w", 1<<20)}}
	}
	server := httptest.NewUnstartedServer(a.handler())
	server.Config.ConnState = func(c net.Conn, s http.ConnState) {
		if s == http.StateNew {
			_ = c.(*net.TCPConn).SetWriteBuffer(256 << 10)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	for range 2 * mostLarge {
		c, err := (&net.Dialer{Control: smallWindow}).Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, "GET /v1/connections HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	eventually := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	ask := func(path string) (int, string) {
		resp, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	eventually("no large answer was refused", func() bool {
		status, body := ask("/v1/connections")
		return status == 503 && strings.Contains(body, "try again")
	})
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/v1/resources": 200} {
		if status, body := ask(path); status != want {
			t.Errorf("%s: %d, %s", path, status, body)
		}
	}
	eventually("those that read nothing keep their places", func() bool {
		status, body := ask("/v1/connections")
		return status == 200 && json.Valid([]byte(body))
	})
}

// smallWindow lets a connection take little that no one reads.
func smallWindow(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
}
