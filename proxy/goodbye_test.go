package proxy_test

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestGoodbyeIsSaidOnce: the check has told a client that it is superseded, and
// before its session has ended the candidacy tells it too, at its next use.
func TestGoodbyeIsSaidOnce(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	client := s.Leader("w")
	candidacy := s.Candidacy(s.DB, "r", "w")
	told, end := make(chan struct{}), make(chan struct{})
	candidacy.OnAdvanced(func() { close(told); <-end })
	s.Supersede()

	client.Send(q(stale))
	if m, err := client.Next(); err != nil || m.Fields()['C'] != "ZF001" {
		t.Fatalf("the stale write is answered by %v, %v", m, err)
	}
	<-told
	was := *candidacy.Status()
	was.Role = fencing.Superseded
	candidacy.SetStatus(&was)
	client.Send(q(stale))
	fixture.Eventually(t, "the session has answered what came last, and left", func() bool {
		return candidacy.Members() == 1 // the one that never spoke
	})
	close(end)
	if rest := client.Rest(); len(rest) > 0 {
		t.Errorf("behind the goodbye came %v", rest[0])
	}
}
