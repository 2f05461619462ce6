package pgtest

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/internal/stopwatch"
)

// shared are the servers of this test process, by major version; 0 is the default
// server.
var shared struct {
	sync.Mutex
	servers map[int]*sharedServer
}

type sharedServer struct {
	once   sync.Once
	server *Server
	err    error
}

// Shared returns the shared server of this test process.
func Shared(t testing.TB) *Server {
	t.Helper()
	return sharedOf(t, 0, nil)
}

// SharedMajor returns this test process's shared server of that major version. It may
// be another server than Shared, even if that has the same version.
func SharedMajor(t testing.TB, major int) *Server {
	t.Helper()
	return sharedOf(t, major, []Option{WithBinaries(Binaries(t, major))})
}

func sharedOf(t testing.TB, major int, opts []Option) *Server {
	t.Helper()
	stopwatch.AwaitRoom(t)
	shared.Lock()
	if shared.servers == nil {
		shared.servers = map[int]*sharedServer{}
	}
	s := shared.servers[major]
	if s == nil {
		s = &sharedServer{}
		shared.servers[major] = s
	}
	shared.Unlock()
	s.once.Do(func() {
		s.server = newServer(opts)
		s.server.shared = true
		s.err = s.server.create()
	})
	if s.err != nil {
		t.Fatalf("start the shared PostgreSQL: %v", s.err)
	}
	return s.server
}

// Main runs a package's tests, stops the shared servers, calls ends, which remove what
// the package created for all of its tests, and fails if a goroutine is left. Call it
// from TestMain; it does not return.
func Main(m *testing.M, ends ...func()) {
	code := m.Run()
	for _, end := range ends {
		end()
	}
	for _, s := range shared.servers {
		if s.server != nil {
			s.server.remove()
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
