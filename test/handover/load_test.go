package handover

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture/process"
)

const (
	handovers = 5
	// connections is how many connections of each worker write.
	connections = 3
	// look is how often a worker that does not lead asks for its role.
	look = 20 * time.Millisecond
	// pause is between two writes of a connection. Without one, the writers would use all the processors.
	pause = 10 * time.Millisecond
)

// done is an acknowledged write.
type done struct {
	worker string
	seq    int64
	epoch  int64
}

// writers are workers that write all the time, as far as they lead.
type writers struct {
	h    *cluster
	stop chan struct{}
	all  sync.WaitGroup

	mu     sync.Mutex
	seq    int64
	done   []done
	states map[string]int // failures by SQLSTATE
}

// start has a worker write through a proxy until the end.
func (w *writers) start(p *process.Server, worker string) {
	for range connections {
		w.all.Go(func() {
			var conn *pgx.Conn
			for {
				select {
				case <-w.stop:
					if conn != nil {
						leave(conn)
					}
					return
				default:
				}
				conn = w.turn(p, worker, conn)
			}
		})
	}
}

// turn writes once if the worker leads. It returns the connection to go on with, nil for a new one.
func (w *writers) turn(p *process.Server, worker string, conn *pgx.Conn) *pgx.Conn {
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	var err error
	if conn == nil {
		if conn, err = pgx.Connect(ctx, w.h.dsn(p, worker)); err != nil {
			w.failed(err)
			return nil
		}
	}
	var role, told string
	if err = conn.QueryRow(ctx, "SHOW fencepost.role").Scan(&role); err == nil {
		err = conn.QueryRow(ctx, "SHOW fencepost.epoch").Scan(&told)
	}
	if err == nil && role != "leader" {
		time.Sleep(look)
		return conn
	}
	if err == nil {
		err = w.write(ctx, conn, worker, told)
	}
	if err != nil {
		w.failed(err)
		leave(conn)
		return nil
	}
	time.Sleep(pause)
	return conn
}

func (w *writers) write(ctx context.Context, conn *pgx.Conn, worker, told string) error {
	epoch, err := strconv.ParseInt(told, 10, 64)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.seq++
	seq := w.seq
	w.mu.Unlock()
	if err := insert(ctx, conn, worker, seq, epoch); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = append(w.done, done{worker, seq, epoch})
	return nil
}

func (w *writers) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states[stateOf(err)]++
}

// under returns how many writes were acknowledged under an epoch.
func (w *writers) under(epoch int64) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.done {
		if d.epoch == epoch {
			n++
		}
	}
	return n
}

// TestHandoversUnderLoad moves the lead to and fro between two workers of two proxies that write all the
// time. No row is written under an epoch after a row of a later one, or under an epoch of another
// worker, and no acknowledged row is missing.
func TestHandoversUnderLoad(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(h *cluster, one, two *process.Server) {
		w := &writers{h: h, stop: make(chan struct{}), states: map[string]int{}}
		stop := sync.OnceFunc(func() { close(w.stop); w.all.Wait() })
		h.Cleanup(stop)
		w.start(one, "a")
		process.Eventually(h, process.Patience, "a to lead", func() bool { return h.granted() == "a" })
		w.start(two, "b")
		for n := range int64(handovers) {
			to := "ba"[n%2 : n%2+1]
			h.known(to)
			process.Eventually(h, process.Patience, "the leader to write", func() bool { return w.under(n+1) > 0 })
			h.order(0, "worker "+to+" leads resource billing with epoch "+strconv.FormatInt(n+2, 10), "handover", resource, "--to", to, "--for", ample)
		}
		process.Eventually(h, process.Patience, "the last leader to write", func() bool { return w.under(handovers+1) > 0 })
		stop()
		w.check()
		h.Logf("%d writes, failures by SQLSTATE %v", len(w.done), w.states)
	})
}

// check compares the rows with the ledger and with what was acknowledged.
func (w *writers) check() {
	w.h.Helper()
	if n := ask[int64](w.h, `SELECT count(*) FROM (SELECT e.epoch, max(e.epoch) OVER (ORDER BY e.id) AS highest FROM entries e) r WHERE r.epoch < r.highest`); n != 0 {
		w.h.Errorf("%d rows were written under an epoch that had ended", n)
	}
	if n := ask[int64](w.h, `SELECT count(*) FROM entries e WHERE NOT EXISTS (SELECT FROM fencepost.grants g WHERE g.epoch = e.epoch AND g.worker = e.worker)`); n != 0 {
		w.h.Errorf("%d rows were written by a worker that did not hold the epoch", n)
	}
	there := map[int64]bool{}
	for _, seq := range ask[[]int64](w.h, "SELECT array_agg(e.seq) FROM entries e") {
		there[seq] = true
	}
	for _, d := range w.done {
		if !there[d.seq] {
			w.h.Errorf("row %d of worker %s, acknowledged under epoch %d, is missing", d.seq, d.worker, d.epoch)
		}
	}
}
