package token_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/token"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// applicable are the cases that ask neither that one worker at a time is awarded a lease, nor
// that a lease ends.
var applicable = []string{
	"what cannot be reached is unknown, not lost",
	"whoever watches sees a new instance begin",
	"a lone worker leads when its first attempt has ended",
	"workers that come one after the other all lead at once",
	"a lost answer neither burns nor repeats an epoch",
	"a renewal whose answer was lost costs the leader nothing",
	"a restored fence is refused, not guessed over",
	"a fence that was lost is made anew for the next worker",
}

func TestConformance(t *testing.T) {
	t.Parallel()
	electiontest.RunCases(t, applicable, open)
}

func open(t *testing.T, server *pgtest.Server, db string) *electiontest.Service {
	direct := pool(t, server.DSN(pgtest.Control, db))
	return &electiontest.Service{
		TTL: 3 * time.Second, Death: 3 * time.Second, Addr: server.Addr(),
		Provider: func(t *testing.T, _ string, link *electiontest.Link) elector.Provider {
			return token.New(pool(t, "postgres://"+pgtest.Control+"@"+link.Addr()+"/"+db+"?sslmode=disable"))
		},
		Bump: func(t *testing.T) {
			if _, err := token.BumpGeneration(t.Context(), direct); err != nil {
				t.Fatal(err)
			}
		},
		Token: tokenOf,
		Generation: func() int64 {
			number, err := token.New(direct).Generation(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return number
		},
	}
}

// tokenOf gives workers tokens in the order in which the cases use them: seed, those with a
// number, and the letters.
func tokenOf(worker string) int64 {
	var n int64
	switch {
	case worker == "seed":
		return 1
	case len(worker) == 1 && worker[0] >= 'a':
		return 1000 + int64(worker[0])
	default:
		_, _ = fmt.Sscanf(worker, "psql-%d", &n)
		_, _ = fmt.Sscanf(worker, "%d", &n)
		return 2 + n
	}
}

func pool(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// TestAGenerationEnds: whoever began in it holds nothing any more, and gets nothing again.
func TestAGenerationEnds(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	direct := pool(t, server.DSN(pgtest.Control, server.Database(t)))
	p := token.New(direct)
	number, err := p.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := token.New(direct).Generation(t.Context()); err != nil || again != number {
		t.Errorf("another proxy sees generation %d, %v; want %d", again, err, number)
	}
	bid := elector.AcquireRequest{Resource: "billing", Worker: "w", Token: 42, Incarnation: fencing.TokenIncarnation(number, 42)}
	lease, err := p.Acquire(t.Context(), bid)
	if err != nil || lease.Index != 42 || lease.InstanceID == "" {
		t.Fatalf("%+v, %v", lease, err)
	}
	if err := p.Renew(t.Context(), lease); err != nil {
		t.Errorf("in its generation, it renews with %v", err)
	}
	next, err := token.BumpGeneration(t.Context(), direct)
	if err != nil || next <= number {
		t.Fatalf("generation %d after %d, %v", next, number, err)
	}
	if err := p.Renew(t.Context(), lease); !errors.Is(err, elector.ErrLost) {
		t.Errorf("in the next generation, it renews with %v", err)
	}
	if _, err := p.Acquire(t.Context(), bid); !errors.Is(err, elector.ErrLost) {
		t.Errorf("in the next generation, it acquires with %v", err)
	}
}
