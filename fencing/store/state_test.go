package store_test

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// reader returns a StateReader that has read the state of the server at the address once.
func reader(t *testing.T, address, db string) *store.StateReader {
	t.Helper()
	r := store.NewStateReader(store.Config{Address: address, Database: db, User: pgtest.Control})
	t.Cleanup(r.Close)
	if _, err := r.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// renews reads until a renewal that is due has ended. Each read must succeed.
func renews(t *testing.T, r *store.StateReader) {
	t.Helper()
	r.Age()
	for n := 0; n == 0 || r.Renewing(); n++ {
		if _, err := r.Read(t.Context()); err != nil {
			t.Fatalf("while the connection is renewed, read %d: %v", n+1, err)
		}
	}
}

// TestAServerThatRefusesAnotherConnection is still known over the one that exists.
func TestAServerThatRefusesAnotherConnection(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	r := reader(t, s.Addr(), "postgres")
	backends := func() (pid int) {
		t.Helper()
		err := s.Connect(t, pgtest.Superuser, "postgres").QueryRow(t.Context(),
			"SELECT max(pid) FROM pg_stat_activity WHERE usename = $1 AND query LIKE '%pg_control_system%'", pgtest.Control).Scan(&pid)
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	first := backends()
	s.Exec(t, pgtest.Superuser, "postgres", "ALTER ROLE "+pgtest.Control+" NOLOGIN")
	for range 3 {
		renews(t, r)
	}
	if now := backends(); now != first {
		t.Errorf("backend %d answers, want %d", now, first)
	}
	other := store.NewStateReader(store.Config{Address: s.Addr(), Database: "postgres", User: pgtest.Control})
	defer other.Close()
	if _, err := other.Read(t.Context()); err == nil {
		t.Error("the role can log in, so the test proves nothing")
	}
	s.Exec(t, pgtest.Superuser, "postgres", "ALTER ROLE "+pgtest.Control+" LOGIN")
	renews(t, r)
	if now := backends(); now == first {
		t.Error("the connection was not renewed")
	}
}

// TestASlowLoginInterruptsNothing: the relay holds new connections back.
func TestASlowLoginInterruptsNothing(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var relays sync.WaitGroup
	gates := make(chan chan struct{}, 10) // one for each connection
	relay := func(in net.Conn, gate chan struct{}) {
		defer in.Close()
		select {
		case <-gate:
		case <-t.Context().Done():
			return
		}
		out, err := net.Dial("tcp", s.Addr())
		if err != nil {
			return
		}
		defer out.Close()
		relays.Go(func() { _, _ = io.Copy(in, out); in.Close() }) // either end of a connection ends the relay
		_, _ = io.Copy(out, in)
	}
	relays.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			gate := make(chan struct{})
			gates <- gate
			relays.Go(func() { relay(in, gate) })
		}
	})
	t.Cleanup(relays.Wait)
	t.Cleanup(func() { l.Close() })
	go func() { close(<-gates) }() // the first connection
	r := reader(t, l.Addr().String(), "postgres")
	r.Age()
	for n := range 3 {
		if _, err := r.Read(t.Context()); err != nil || !r.Renewing() {
			t.Fatalf("read %d, while the login takes long: %v; it is being renewed: %t", n+1, err, r.Renewing())
		}
	}
	close(<-gates)
	renews(t, r)
}

// TestTheDatabaseOfTheLooksIsDropped: the server is looked at in another one.
func TestTheDatabaseOfTheLooksIsDropped(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	db := s.EmptyDatabase(t)
	r := reader(t, s.Addr(), db)
	s.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+db+" WITH (FORCE)")
	st, err := r.Read(t.Context())
	if err != nil || st.Standby || st.Timeline != 1 {
		t.Errorf("%+v, %v", st, err)
	}
}
