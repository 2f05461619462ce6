package connection

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

// stuck are elections in which nobody joins the candidacy of a token, until the connection gives up.
type stuck struct {
	fencing.Candidates
	joining chan context.Context // the context of each who tries
}

// Join implements fencing.Candidates.
func (s stuck) Join(ctx context.Context, claim fencing.JoinRequest, m fencing.Member) (fencing.Candidacy, error) {
	if claim.Token == 0 {
		return s.Candidates.Join(ctx, claim, m)
	}
	s.joining <- ctx
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestATokenIsNotWaitedForWithoutAClient: the client has set a token, and goes while its session waits
// to join the candidacy of that token.
func TestATokenIsNotWaitedForWithoutAClient(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	db := pg.Database(t)
	joining := make(chan context.Context, 1)
	p := fixture.NewProxy(t, pg, func(c *proxy.Config) {
		c.Candidates, c.StartupTimeout = stuck{c.Candidates, joining}, time.Hour
	})
	conn, err := pgx.Connect(t.Context(), "postgres://"+pgtest.App+"@"+p.Addr+"/"+db+"?sslmode=disable&fencepost.resource=r&fencepost.worker=w")
	if err != nil {
		t.Fatal(err)
	}
	set := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SET fencepost.token = '2'")
		set <- err
	}()
	join := <-joining
	if err := conn.PgConn().Conn().Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-set; err == nil {
		t.Error("the token was set without an answer")
	}
	select {
	case <-join.Done():
		if why := context.Cause(join); errors.Is(why, context.Canceled) || errors.Is(why, context.DeadlineExceeded) {
			t.Errorf("the wait ends because of %v, want the client", why)
		}
	case <-time.After(fixture.Patience):
		t.Fatal("the session goes on waiting without its client")
	}
	fixture.Eventually(t, "the session to leave its candidacy", func() bool { return p.Elector.Members(db, "r", "w") == 0 })
}
