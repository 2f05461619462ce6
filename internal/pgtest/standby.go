package pgtest

import (
	"fmt"
	"testing"
)

// Standby starts a hot standby of the server, and ends it when the test ends. It streams from
// the server under the name "standby", asynchronously unless the server's
// synchronous_standby_names says otherwise. The server must have pg_basebackup: see WithTools.
func (s *Server) Standby(t testing.TB, opts ...Option) *Server {
	t.Helper()
	standby := newServer(append([]Option{WithBinaries(s.found)}, opts...))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the standby's log:\n%s", standby.logTail())
		}
		standby.remove()
	})
	if err := standby.follow(s); err != nil {
		t.Fatalf("start a standby: %v", err)
	}
	return standby
}

// follow creates the data directory as a copy of the primary's, and starts the server.
func (s *Server) follow(primary *Server) error {
	if err := s.place(); err != nil {
		return err
	}
	from := fmt.Sprintf("host=127.0.0.1 port=%d user=%s application_name=standby", primary.Port(), Superuser)
	out, err := s.command("pg_basebackup", "-D", s.data(), "-d", from, "-X", "stream", "-c", "fast", "--no-sync", "-R").CombinedOutput()
	if err != nil {
		return fmt.Errorf("run pg_basebackup: %w: %s", err, out)
	}
	if err := s.configure(); err != nil {
		return err
	}
	return s.start()
}

// Promote makes a standby a primary, and waits until it is one.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	s.Exec(t, Superuser, "postgres", "SELECT pg_promote()")
}
