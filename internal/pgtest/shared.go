package pgtest

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Shared returns the one server of this test process.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() {
		shared.server = newServer(nil)
		shared.err = shared.server.create()
	})
	if shared.err != nil {
		t.Fatalf("start the shared PostgreSQL: %v", shared.err)
	}
	return shared.server
}

// Main runs a package's tests, stops the shared server, and fails if a
// goroutine is left. Call it from TestMain; it does not return. after is what
// else has to be done behind the tests.
func Main(m *testing.M, after ...func()) {
	code := m.Run()
	for _, do := range after {
		do()
	}
	if shared.server != nil {
		shared.server.remove()
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
