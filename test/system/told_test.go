package system

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// poolCase is a pool of worker a at one proxy, which others supersede through another.
type poolCase struct {
	*cluster
	t        *testing.T
	one, two *process.Server
}

func newPoolCase(t *testing.T, provider string) *poolCase {
	t.Helper()
	h := newCluster(t, provider, with(long))
	return &poolCase{h, t, h.proxy(), h.proxy()}
}

// opens returns another connection of the pool.
func (p *poolCase) opens() *client {
	p.t.Helper()
	return p.join(p.one, "a", "worker_timeout", "300ms")
}

const poolWrite = "INSERT INTO work VALUES ('a')"

// refused checks that a write is refused, and closes the connection.
func (p *poolCase) refused(c *client, state string) {
	p.t.Helper()
	if err := c.exec(poolWrite); stateOf(err) != state {
		p.t.Fatalf("the write: %v; want %s", err, state)
	}
	c.leave()
}

// startsOver opens connections until one leads, whose first write is refused because it was
// not told. It returns that one.
func (p *poolCase) startsOver() (c *client) {
	p.t.Helper()
	process.Eventually(p.t, process.Patience, "the pool to lead", func() bool {
		c = p.opens()
		err := c.exec(poolWrite)
		switch stateOf(err) {
		case fencing.StateStartOver:
			return true
		case fencing.StateNotLeader: // its proxy has not noticed yet that the lease is free
			c.leave()
			return false
		default:
			p.t.Fatalf("the write: %v; want ZF003", err)
			return false
		}
	})
	return c
}

// isTold makes the pool learn that it leads, and closes the connection that did.
func (p *poolCase) isTold() {
	p.t.Helper()
	c := p.startsOver()
	c.must("SELECT 1") // which shows that it has read the error
	c.leave()
}

// supersedes lets another worker lead and leave, once a is silent.
func (p *poolCase) supersedes(worker string) {
	p.t.Helper()
	other := p.join(p.two, worker, "campaign", "wait")
	other.must("INSERT INTO work VALUES ('other')")
	other.leave()
	p.two.Await(p.t, "released", "worker", worker)
}

// TestSafetyAPoolIsToldAgain plays a pool of a worker that is superseded and leads again: one
// that replaces its connections at each error, and keeps others open that do not know yet.
func TestSafetyAPoolIsToldAgain(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			p := newPoolCase(t, provider)
			first, second, third := p.opens(), p.opens(), p.opens()
			first.must(poolWrite)
			p.supersedes("b")
			p.refused(first, fencing.StateSuperseded)
			p.isTold()
			last := p.opens() // its candidacy ended with the connection that was told
			last.must(poolWrite)
			last.leave()
			last = p.opens()
			last.must(poolWrite)
			// A statement that the pool sends again after this one was decided by a worker
			// that did not know.
			p.refused(second, fencing.StateSuperseded)
			p.isTold()
			p.opens().must(poolWrite)

			last.must(poolWrite)
			p.supersedes("c")
			p.refused(last, fencing.StateSuperseded)
			p.isTold()
			last = p.opens()
			last.must(poolWrite)
			// The same holds if the connection is cut before it is told.
			if err := third.PgConn().Conn().Close(); err != nil {
				t.Fatal(err)
			}
			process.Eventually(t, process.Patience, "the proxy to notice", func() bool {
				c := p.opens()
				defer c.leave()
				return stateOf(c.exec(poolWrite)) == fencing.StateStartOver
			})
		})
	}
}

// TestSafetyWhatWasToldBeforeDoesNotCount: a superseded connection of a worker ends after
// others were told of the new epoch, and before they show that they have read it.
func TestSafetyWhatWasToldBeforeDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, told := range map[string]func(p *poolCase) *client{
		"by an error": func(p *poolCase) *client {
			return p.startsOver()
		},
		"at startup": func(p *poolCase) *client {
			p.isTold()
			return p.opens()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPoolCase(t, "postgres")
			first, second := p.opens(), p.opens()
			first.must(poolWrite)
			p.supersedes("b")
			p.refused(first, fencing.StateSuperseded)
			c := told(p)
			p.refused(second, fencing.StateSuperseded)
			c.must("SELECT 1")
			p.isTold()
		})
	}
}

// TestSafetyAnotherUsersWorkerOfTheSameName: two users have a worker of the same id. The
// ledger does not tell them apart.
func TestSafetyAnotherUsersWorkerOfTheSameName(t *testing.T) {
	t.Parallel()
	p := newPoolCase(t, "postgres")
	p.pg.Exec(t, pgtest.Superuser, p.db, "GRANT ALL ON work TO "+pgtest.Control)
	first := p.opens()
	first.must(poolWrite)
	conn, err := pgx.Connect(t.Context(), p.one.DSN(pgtest.Control, p.db, "resource", resource, "worker", "a", "campaign", "wait"))
	if err != nil {
		t.Fatal(err)
	}
	other := &client{conn, t}
	other.must("INSERT INTO work VALUES ('other user')")
	other.leave()
	p.refused(first, fencing.StateSuperseded)
	c := p.join(p.one, "a", "campaign", "wait")
	p.refused(c, fencing.StateStartOver)
}
