package unixsocket

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// shortDir returns a directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// leave makes the socket file of a process that was killed.
func leave(t *testing.T, path string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
}

func TestListenMakesASocketAndCloseRemovesIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), ".s.PGSQL.6432")
	for _, mode := range []os.FileMode{0o777, 0o600} {
		ln, err := Listen(path, mode)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode() != mode|os.ModeSocket {
			t.Errorf("the socket has the mode %v, %v; want %v", info.Mode(), err, mode)
		}
		if got := ln.Addr().String(); got != path {
			t.Errorf("it listens at %s", got)
		}
		far, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if from := conn.RemoteAddr(); from.Network() != Network || !strings.HasPrefix(from.String(), "local") {
			t.Errorf("the peer's address is %s %s", from.Network(), from)
		}
		_, _ = far.Close(), conn.Close()
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("after the end: %v, want no file", err)
		}
		if err := ln.Close(); err != nil {
			t.Errorf("the second close: %v", err)
		}
	}
}

func TestASocketOfTheDeadIsReplaced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "s")
	leave(t, path)
	ln, err := Listen(path, 0o777)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if conn, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
}

func TestWhatIsInTheWayStays(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	living := filepath.Join(dir, "living")
	ln, err := Listen(living, 0o777)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	datagrams := filepath.Join(dir, "datagrams") // a living socket that takes no connections
	other, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: datagrams, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for path, want := range map[string]string{
		datagrams:                          "another process may listen at",
		living:                             "another process listens at",
		file:                               "exists and is no socket",
		dir:                                "is a directory: name the socket in it",
		filepath.Join(dir, "missing", "s"): "create it",
		filepath.Join(dir, long("x", 120)): "invalid argument",
	} {
		if second, err := Listen(path, 0o777); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
			if err == nil {
				_ = second.Close()
			}
		}
	}
	conn, err := net.Dial("unix", living)
	if err != nil {
		t.Fatalf("the living listener: %v", err)
	}
	_ = conn.Close()
}

func long(s string, n int) string { return strings.Repeat(s, n) }

// TestOneOfManyGetsTheSocket: of several processes that start at once over a file of the dead,
// one listens, and no one removes its file.
func TestOneOfManyGetsTheSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "s")
	for range 50 {
		leave(t, path)
		var wg sync.WaitGroup
		listeners := make(chan net.Listener, 4)
		for range cap(listeners) {
			wg.Go(func() {
				if ln, err := Listen(path, 0o777); err == nil {
					listeners <- ln
				} else if !strings.Contains(err.Error(), "another process listens") {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		close(listeners)
		if len(listeners) != 1 {
			t.Errorf("%d listeners at one path", len(listeners))
		}
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		for ln := range listeners {
			_ = ln.Close()
		}
	}
}

// TestCloseLeavesAnothersSocket: someone removed the file, and another process began there.
func TestCloseLeavesAnothersSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "s")
	first, err := Listen(path, 0o777)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path, 0o777)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the second listener's file: %v", err)
	}
	_ = conn.Close()
}

// TestASocketIsInherited: two listeners have one socket. The file is left by the one that does not own it, and removed by the other.
func TestASocketIsInherited(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), ".s.PGSQL.6432")
	old, err := Listen(path, 0o777)
	if err != nil {
		t.Fatal(err)
	}
	inherit := func() *Listener {
		t.Helper()
		f, err := old.File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		next, err := Inherit(path, f)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	if err := inherit().Close(); err != nil || !old.Reachable() {
		t.Fatalf("a listener that owns no file has removed it, or %v", err)
	}
	next := inherit()
	old.Disown()
	if err := next.Own(0o700); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil || !next.Reachable() {
		t.Fatalf("the former owner has removed the file, or %v", err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o700 {
		t.Errorf("the file is %v, %v", info, err)
	}
	far, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	conn, err := next.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if from := conn.RemoteAddr(); from.Network() != Network || !strings.HasPrefix(from.String(), "local") {
		t.Errorf("the peer's address is %s %s", from.Network(), from)
	}
	_ = conn.Close()
	if err := next.Close(); err != nil || next.Reachable() {
		t.Errorf("the owner has left the file, or %v", err)
	}
	if _, err := Inherit(path, nil); err == nil {
		t.Error("a socket without a file was inherited")
	}
}
