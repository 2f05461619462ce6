package proxy_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// TestGoodbyeIsSaidOnce: the check has found out that a client is superseded. Before the client
// is told, its candidacy knows it, which tells the client too at its next use.
func TestGoodbyeIsSaidOnce(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	client := s.Leader("w")
	candidacy := s.Candidacy(s.DB, "r", "w")
	asked, told := make(chan struct{}), make(chan struct{})
	candidacy.OnAdvanced(func() { close(asked); <-told })
	s.Supersede()

	client.Send(Q(stale))
	<-asked
	was := *candidacy.Status()
	was.Role = fencing.Superseded
	candidacy.SetStatus(&was)
	client.Send(Q(stale))
	close(told)
	if m, err := client.Next(); err != nil || m.Fields()['C'] != "ZF001" {
		t.Fatalf("the stale write is answered by %v, %v", m, err)
	}
	if rest := client.Rest(); len(rest) > 0 {
		t.Errorf("behind the goodbye came %v", rest[0])
	}
	fixture.Eventually(t, "the session has left", func() bool {
		return candidacy.Members() == 0
	})
}

// TestGoodbyeIsSaidToOneWhoEndsTheSession: a grant ends the backend that is about to end the
// connection over a message of an unknown type.
func TestGoodbyeIsSaidToOneWhoEndsTheSession(t *testing.T) {
	t.Parallel()
	const unknown = '!'
	sent := make(chan struct{})
	s := fixture.NewCluster(t, pgtest.Shared(t), func(c *proxy.Config) {
		observe := c.Observe
		c.Observe = func(o proxy.Observed) proxy.Observer {
			return &lookout{Observer: observe(o), typ: unknown, seen: sync.OnceFunc(func() { close(sent) })}
		}
	})
	client := s.Leader("w")
	backend, err := strconv.Atoi(fixture.FirstValue(t, fixture.MustPass(t, client, Q("select pg_backend_pid()"))))
	if err != nil {
		t.Fatal(err)
	}
	resume := fixture.FreezeProcess(t, backend)
	client.Send([]byte{unknown})
	<-sent
	s.Supersede()
	s.Exec(fmt.Sprintf("select pg_terminate_backend(%d)", backend))
	resume()
	if m, err := client.Next(); err != nil || m.Fields()['V'] != "FATAL" || m.Fields()['C'] != "ZF001" {
		t.Fatalf("the client is told %v, %v; want FATAL ZF001", m, err)
	}
	if rest := client.Rest(); len(rest) > 0 {
		t.Errorf("behind the goodbye came %v", rest[0])
	}
}

// lookout calls seen when bytes that begin with a message of that type are about to be sent.
type lookout struct {
	proxy.Observer
	typ  byte
	seen func()
}

// Sent implements proxy.Observer.
func (l *lookout) Sent(b []byte) error {
	if len(b) > 0 && b[0] == l.typ {
		l.seen()
	}
	return l.Observer.Sent(b)
}
