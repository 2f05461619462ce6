package proxy_test

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
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
		return candidacy.Members() == 1 // the one that never spoke
	})
}
