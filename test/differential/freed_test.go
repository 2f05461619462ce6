package differential

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
)

// TestSafetyFreedTwin runs scripts as a worker whose lease is freed, or becomes
// unconfirmed, at a random point. The worker may get it back under the same epoch,
// before or after a worker of another proxy was granted one, of which its own proxy
// knows nothing. Once that grant has returned, nothing of the first worker is
// committed, and the second one writes undisturbed.
func TestSafetyFreedTwin(t *testing.T) {
	t.Parallel()
	twins(t, (*pair).freed)
}

func (p *pair) freed(s script, r *rand.Rand) error {
	db := p.fenced
	candidacy := db.candidacy("w")
	if _, err := candidacy.TryGrant(); err != nil {
		return err
	}
	led := candidacy.Status()
	lapsed := *led
	lapsed.Lapsed = true
	next := db.successor()
	steps := []int{r.IntN(len(s.steps)), r.IntN(len(s.steps)), r.IntN(len(s.steps))}
	slices.Sort(steps)
	lost := []*fencing.Status{{Role: fencing.Follower, Vacant: true, Holder: led.Holder}, &lapsed}[r.IntN(2)]
	moves := []func(){func() { candidacy.SetStatus(lost) }, next.takeOver, func() { candidacy.SetStatus(led) }}
	if r.IntN(2) == 0 { // it gets its lease back first
		moves[1], moves[2] = moves[2], moves[1]
	}
	got, err := db.run(s, nil, func(i int) {
		for k, at := range steps {
			if at == i {
				moves[k]()
			}
		}
	})
	if err := errors.Join(next.works(), err); err != nil {
		return err
	}
	if err := db.nothingSince(next.found); err != nil {
		return fmt.Errorf("lease lost, granted to another worker and regained at steps %v: %w\nFencepost:\n  %s", steps, err, strings.Join(lines(got.all), "\n  "))
	}
	return db.tidy()
}

// successor is a worker of the second proxy.
type successor struct {
	db        *database
	candidacy *fixture.FakeCandidacy
	found     contents // when its grant had returned
	once      sync.Once
	err       error // the error of its takeover
	conn      *pgx.Conn
	wrote     int
}

func (r *database) successor() *successor {
	return &successor{db: r, candidacy: r.candidacy("successor")}
}

// takeOver makes the successor take over and write, once.
func (n *successor) takeOver() { n.once.Do(func() { n.err = n.tryTakeOver() }) }

func (n *successor) tryTakeOver() error {
	if _, err := n.candidacy.TryGrant(); err != nil {
		return err
	}
	if err := n.db.look(); err != nil {
		return err
	}
	n.found = n.db.now
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	if n.conn, err = n.db.cluster.other.Dial(ctx, n.db.name, "successor"); err != nil {
		return fmt.Errorf("connect the successor: %w", err)
	}
	return n.write(ctx)
}

func (n *successor) write(ctx context.Context) error {
	if _, err := n.conn.Exec(ctx, "insert into harness.beside values (1)"); err != nil {
		return fmt.Errorf("the successor's write: %w", err)
	}
	n.wrote++
	return nil
}

// works makes the successor take over if it has not yet, write once more, and end.
func (n *successor) works() error {
	if n.takeOver(); n.err != nil {
		return n.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := errors.Join(n.write(ctx), n.conn.Close(ctx)); err != nil {
		return err
	}
	var rows int
	if err := n.db.ask(&rows, "with x as (delete from harness.beside returning n) select count(*) from x"); err != nil {
		return err
	}
	if rows != n.wrote {
		return fmt.Errorf("the successor has written %d rows, but the table has %d", n.wrote, rows)
	}
	return nil
}

// nothingSince waits until the workers have ended, and compares the contents of the
// database with those at the time when a grant had returned.
func (r *database) nothingSince(found contents) error {
	if err := r.atRest(); err != nil {
		return err
	}
	if !r.now.same(found) {
		return fmt.Errorf("a stale worker's work was committed. When the grant had returned:\n%s\nat the end:\n%s", found, r.now)
	}
	return nil
}
