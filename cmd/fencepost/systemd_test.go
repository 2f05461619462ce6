package main

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestServeTellsSystemd checks that a service of Type=notify is started when it accepts
// connections, and stopping as soon as it drains. It sets the process's environment, so it
// does not run beside others.
func TestServeTellsSystemd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	mustHear := func(want string) {
		t.Helper()
		if err := systemd.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 256)
		n, err := systemd.Read(buf)
		if err != nil || string(buf[:n]) != want {
			t.Fatalf("systemd is told %q, %v; want %q", buf[:n], err, want)
		}
	}
	r := startServing(t, pgtest.Shared(t), nil)
	mustHear("READY=1")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	mustHear("STOPPING=1")
}
