package discard

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// racer has workers write rows through the proxy while each of them is granted epochs, and
// compares each answer with what is in the table.
type racer struct {
	c    *fixture.Cluster
	ctx  context.Context
	stop func()

	granting sync.Mutex
	grants   int                  // that are still to come at least
	most     int                  // that may come
	late     *fixture.Late[int64] // by epoch

	mu                          sync.Mutex
	next                        int
	written, nothing            map[int]bool // the rows of which it was answered that they are there, or not
	transactions, ended, failed int
	why                         error // of the last that failed
}

// work is one worker. It begins anew when some of its writes were discarded, or a grant has ended
// its connection.
func (r *racer) work(n int) {
	for life := 0; r.ctx.Err() == nil; life++ {
		name := fmt.Sprintf("w%d.%d", n, life)
		untold, err := r.c.TryJoin(r.ctx, name)
		if err != nil {
			continue
		}
		epoch := r.grant(name)
		_ = untold.Close(context.Background())
		conn, err := r.c.TryJoin(r.ctx, name)
		if err != nil {
			continue
		}
		for n, discarded := 0, 0; n < 60 && discarded < 5 && r.ctx.Err() == nil && !conn.IsClosed(); n++ {
			if r.transact(conn, epoch) {
				discarded++
				time.Sleep(rand.N(5 * time.Millisecond))
			}
		}
		_ = conn.Close(context.Background())
	}
}

// grant grants a worker an epoch, and counts the rows of older ones.
func (r *racer) grant(worker string) int64 {
	r.granting.Lock()
	defer r.granting.Unlock()
	epoch, err := r.c.Candidacy(r.c.DB, "r", worker).TryGrant()
	if err != nil {
		r.c.T.Errorf("grant: %v", err)
		r.stop()
		return 0
	}
	r.late.Granted(int64(epoch))
	r.grants, r.most = r.grants-1, r.most-1
	if r.most <= 0 || r.grants <= 0 && r.enough() {
		r.stop()
	}
	return int64(epoch)
}

// enough reports whether the workers have raced with the grants.
func (r *racer) enough() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.written) >= 100 && len(r.nothing) >= 20
}

func (r *racer) older(epoch int64) (n int) {
	if err := r.c.Admin.QueryRow(context.Background(), "select count(*) from rows where epoch < $1", epoch).Scan(&n); err != nil {
		r.c.T.Error(err)
	}
	return n
}

// transact writes a row or two, alone or in a block, as Queries or as extended messages.
// It reports whether one of them was discarded.
func (r *racer) transact(conn *pgx.Conn, epoch int64) (discarded bool) {
	r.mu.Lock()
	first := r.next
	r.next += 2
	r.mu.Unlock()
	inserted := map[int]bool{}
	insert := func(id int) error {
		args := []any{pgx.QueryExecModeExec, id, epoch}
		if rand.IntN(2) == 0 {
			args[0] = pgx.QueryExecModeSimpleProtocol
		}
		tag, err := conn.Exec(r.ctx, "insert into rows (id, epoch) values ($1, $2)", args...)
		inserted[id] = tag.RowsAffected() > 0
		return err
	}
	err := insert(first)
	if rand.IntN(2) == 0 && err == nil {
		err = r.block(conn, func() error { return insert(first + 1) })
		if err != nil {
			delete(inserted, first+1) // nobody knows, if its COMMIT was not answered
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	state := pgtest.StateOf(err)
	switch r.transactions++; {
	case err == nil:
	case conn.IsClosed(): // a grant has ended it
		r.ended++
		delete(inserted, first)
	case state == "ZF002", state == "ZF003":
		delete(inserted, first)
	case r.ctx.Err() != nil: // the end of the race
		clear(inserted)
	default:
		r.failed, r.why = r.failed+1, err
	}
	for id, there := range inserted {
		if there {
			r.written[id] = true
		} else {
			r.nothing[id], discarded = true, true
		}
	}
	return discarded
}

func (r *racer) block(conn *pgx.Conn, insert func() error) error {
	for i, sql := range []string{"begin", "", "commit"} {
		if i == 1 {
			if err := insert(); err != nil {
				_, _ = conn.Exec(r.ctx, "rollback")
				return err
			}
			time.Sleep(rand.N(20 * time.Millisecond)) // a grant may come in between
			continue
		}
		if _, err := conn.Exec(r.ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// race has four workers write while each is granted epochs, until there were as many grants and
// enough was written, or four times as many. It returns how many rows of older epochs have appeared
// after grants had returned, by epoch.
func race(c *fixture.Cluster, grants int) (late map[int64]int, r *racer) {
	c.T.Helper()
	c.Exec("create table rows (id int primary key, epoch bigint); grant all on rows to app")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r = &racer{c: c, ctx: ctx, stop: cancel, grants: grants, most: 4 * grants, next: 1, written: map[int]bool{}, nothing: map[int]bool{}}
	r.late = fixture.NewLate(r.older)
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() { r.work(n) })
	}
	all.Wait()
	return r.late.Rows(), r
}

// TestSafetyDiscardRace has workers write while epochs are granted: every row that was answered
// with INSERT 0 1 is there, no row that was answered with INSERT 0 0 is, and no row of an older
// epoch appears after a grant has returned.
func TestSafetyDiscardRace(t *testing.T) {
	t.Parallel()
	since16(t, func(c *fixture.Cluster) {
		late, r := race(c, 60)
		if len(late) > 0 {
			c.T.Errorf("rows of older epochs appeared after grants had returned, by epoch: %v", late)
		}
		for id := range r.written {
			if c.Number("select count(*) from rows where id = $1", id) != 1 {
				c.T.Errorf("row %d was answered with INSERT 0 1, and is not there", id)
			}
		}
		for id := range r.nothing {
			if c.Number("select count(*) from rows where id = $1", id) != 0 {
				c.T.Errorf("row %d was answered with INSERT 0 0, and is there", id)
			}
		}
		c.T.Logf("%d transactions, %d rows written, %d discarded, %d ended by grants", r.transactions, len(r.written), len(r.nothing), r.ended)
		if r.failed > 0 || !r.enough() {
			c.T.Errorf("%d transactions failed (%v), %d rows written, %d discarded: the workers did not race with the grants", r.failed, r.why, len(r.written), len(r.nothing))
		}
	})
}
