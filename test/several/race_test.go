package several

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// The race of TestSafetyAPoolOverShards.
const (
	shards   = 200
	workers  = 3
	poolSize = 8
	// takeovers is how many it needs, and least how many are enough after a while.
	takeovers = 100
	least     = 10
)

func shard(n int) string { return fmt.Sprintf("shard-%d", n) }

// anyShard returns one of all shards, but mostly one of a few, about which the workers fight.
func anyShard() int {
	if rand.IntN(4) == 0 {
		return rand.IntN(shards)
	}
	return rand.IntN(shards / 10)
}

// pool is the connections of one worker, each of which writes to one shard after another, and
// sometimes to two in one transaction.
type pool struct {
	c      *fixture.Cluster
	worker string

	mu      sync.Mutex
	answers map[string]int // how transactions ended, by their SQLSTATE; "" is a commit
}

// write keeps one connection of the pool at work until ctx ends.
func (p *pool) write(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := p.c.TryJoin(ctx, p.worker, "fencepost.resource", "of-"+p.worker)
		if err != nil {
			continue
		}
		for ctx.Err() == nil && !conn.IsClosed() {
			state := pgtest.StateOf(p.transact(ctx, conn))
			p.mu.Lock()
			p.answers[state]++
			p.mu.Unlock()
		}
		_ = conn.Close(context.Background())
	}
}

// answers returns how the transactions of all pools have ended, by their SQLSTATE.
func answers(pools []*pool) map[string]int {
	all := map[string]int{}
	for _, p := range pools {
		p.mu.Lock()
		for state, n := range p.answers {
			all[state] += n
		}
		p.mu.Unlock()
	}
	return all
}

// raced reports whether the writers have raced with the grants.
func raced(answers map[string]int) bool {
	return answers[""] != 0 && (!fencing.Checking || answers[fencing.StateSuperseded] != 0 && answers[fencing.StateNotLeader] != 0)
}

// transact writes a row for each chosen shard, with the epoch that the client was told of.
func (p *pool) transact(ctx context.Context, conn *pgx.Conn) error {
	chosen := []int{anyShard()}
	if rand.IntN(3) == 0 {
		chosen = append(chosen, (chosen[0]+1+rand.IntN(shards/10-1))%shards)
	}
	names := make([]string, 0, len(chosen))
	for _, n := range chosen {
		names = append(names, shard(n))
	}
	begin := []string{"BEGIN", "SET LOCAL fencepost.resource = '" + strings.Join(names, ", ") + "'"}
	if rand.IntN(2) == 0 {
		begin = []string{strings.Join(begin, "; ")}
	}
	defer func() {
		if !conn.IsClosed() {
			_, _ = conn.Exec(context.Background(), "ROLLBACK")
		}
	}()
	for _, sql := range begin {
		if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			return err
		}
	}
	epochs := strings.Split(conn.PgConn().ParameterStatus("fencepost.epoch"), ", ")
	time.Sleep(rand.N(5 * time.Millisecond)) // others may be granted an epoch meanwhile
	for i, n := range chosen {
		if len(epochs) != len(chosen) {
			return fmt.Errorf("the epochs of %v are %v", names, epochs)
		}
		if _, err := conn.Exec(ctx, "INSERT INTO entries VALUES ($1, $2::bigint)", n, epochs[i]); err != nil {
			return err
		}
	}
	time.Sleep(rand.N(5 * time.Millisecond))
	_, err := conn.Exec(ctx, "COMMIT")
	return err
}

// takeOver makes a worker lead a shard that it has named and does not lead, and returns its epoch, 0
// if there is nothing to take over.
func takeOver(t *testing.T, c *fixture.Cluster, n int, worker string) fencing.Epoch {
	t.Helper()
	if c.Elector.Members(c.DB, shard(n), worker) == 0 {
		return 0
	}
	cand := c.Candidacy(c.DB, shard(n), worker)
	if cand.CheckSuperseded(t.Context()) || cand.Status().Epoch != 0 {
		return 0
	}
	epoch, err := cand.TryGrant()
	if err != nil {
		t.Errorf("take over %s: %v", shard(n), err)
	}
	return epoch
}

// TestSafetyAPoolOverShards: the pools of three workers write to 200 shards, which are taken over
// meanwhile. No row of an earlier epoch of a shard is committed after the grant of a later one has
// returned, and no two transactions ever wait for each other.
func TestSafetyAPoolOverShards(t *testing.T) {
	t.Parallel()
	c := fixture.NewCluster(t, pgtest.Shared(t))
	c.Exec("create table entries (shard int, epoch bigint); grant all on entries to app; create index on entries (shard)")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	stop := sync.OnceFunc(func() { cancel(); all.Wait() })
	defer stop()
	var pools []*pool
	for i := range workers {
		p := &pool{c: c, worker: fmt.Sprintf("worker%d", i), answers: map[string]int{}}
		pools = append(pools, p)
		for range poolSize {
			all.Go(func() { p.write(ctx) })
		}
	}
	type term struct {
		shard int
		epoch fencing.Epoch
	}
	late, taken := fixture.NewLate(func(x term) int {
		return c.Number("select count(*) from entries where shard = $1 and epoch < $2", x.shard, int64(x.epoch))
	}), 0
	began := time.Now()
	patience := 10 * fixture.Patience // each grant may take seconds
	if !fencing.Checking {            // nothing is chosen then
		patience = 5 * time.Second
	}
	enough := func() bool { return taken >= takeovers || taken >= least && time.Since(began) > fixture.Patience/4 }
	for time.Since(began) < patience && !(enough() && raced(answers(pools))) {
		n := anyShard()
		if epoch := takeOver(t, c, n, pools[rand.IntN(workers)].worker); epoch != 0 {
			late.Granted(term{n, epoch})
			if epoch > 1 {
				taken++
			}
		} else {
			time.Sleep(time.Millisecond) // the writers need the processors more
		}
	}
	stop()
	for x, n := range late.Rows() {
		t.Errorf("%s: %d rows of earlier epochs were committed after epoch %d was granted", shard(x.shard), n, x.epoch)
	}
	found := answers(pools)
	t.Logf("%d grants, of which %d took a shard over; transactions by their SQLSTATE: %v", late.Grants(), taken, found)
	if taken < least || !raced(found) || found["40P01"] != 0 {
		t.Error("the writers did not race with the grants as they should")
	}
	for _, r := range c.Audited(t, c.DB) {
		if !strings.HasPrefix(r.Resource, "shard-") {
			t.Errorf("audited: %+v", r)
			break
		}
	}
}
