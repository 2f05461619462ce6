package drivers

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
)

// connections is the size of every pool.
const connections = 3

// poolSchema is the table in which the pools work. A row has the epoch under which it
// was written: the check's lock holds it until the transaction ends. An INSERT takes
// some time, so that a pool needs all of its connections.
const poolSchema = `
CREATE TABLE work (id bigserial PRIMARY KEY, what text NOT NULL, epoch bigint NOT NULL);
GRANT INSERT ON work TO PUBLIC;
GRANT SELECT (id) ON work TO PUBLIC;
GRANT USAGE ON work_id_seq TO PUBLIC;
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	PERFORM pg_sleep(0.02);
	NEW.epoch := f.epoch FROM fencepost.fence f WHERE f.resource = '` + resource + `';
	RETURN NEW;
END $$;
CREATE TRIGGER stamp BEFORE INSERT ON work FOR EACH ROW EXECUTE FUNCTION stamp();
`

// pool is a program that works through its pool, with a proxy of its own.
type pool struct {
	*cluster
	program *process.Logged
	answer  func(string) error

	mu      sync.Mutex
	results []string // of its INSERTs, in the order in which they ended: ok, or the error
}

// startPool starts a proxy and the program, and waits until the program works with all
// connections of its pool.
func startPool(t *testing.T, d driver, part string, pg *pgtest.Server) *pool {
	t.Helper()
	p := &pool{cluster: newCluster(t, pg, nil)}
	p.serve(t, ports.For(t).Address())
	pg.Exec(t, pgtest.Superuser, p.db, poolSchema)
	p.program, p.answer = d.launch(t, part, p.at(t, p.proxy.Address, "pool-1", "fencepost.worker_timeout="+workerTimeout.String()), func(l line) {
		result, ok := l.Result.(string)
		if !ok {
			result = l.String()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.results = append(p.results, result)
	})
	monitor := pg.Connect(t, pgtest.Superuser, p.db)
	p.eventually(t, "its connections to be open", func() bool {
		var open int
		err := monitor.QueryRow(context.Background(),
			"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1", pgtest.App).Scan(&open)
		return err == nil && open == connections
	})
	p.works(t)
	return p
}

// The settings of the proxy that bound how soon a pool writes again.
const (
	workerTimeout = 300 * time.Millisecond
	leaseGrace    = 200 * time.Millisecond
	leaseTTL      = 15 * time.Second // no event here waits for it, and a request to renew it has a third
)

// serve starts the proxy at an address, the first one or one after another.
func (p *pool) serve(t testing.TB, address string) {
	t.Helper()
	p.proxy = serve(t, p.pg, "FENCEPOST_LISTEN="+address, "FENCEPOST_PROXY_ID=pools", "FENCEPOST_LEASE_TTL="+leaseTTL.String())
}

// since returns the results from the nth on.
func (p *pool) since(n int) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.results[n:])
}

// eventually waits for a condition. A program that has ended fails the test, because
// nobody restarts it.
func (p *pool) eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if !process.Holds(process.Patience, func() bool { return p.program.Ended() || condition() }) || p.program.Ended() {
		t.Fatalf("waited for: %s; the program (ended: %t) printed:\n%s", what, p.program.Ended(), process.Tail(p.program.Log()))
	}
}

// works waits until several INSERTs in succession succeed on each connection.
func (p *pool) works(t testing.TB) {
	t.Helper()
	from := len(p.since(0))
	p.eventually(t, "the pool to write", func() bool {
		results := p.since(from)
		last := results[max(0, len(results)-5*connections):]
		return len(last) == 5*connections && !slices.ContainsFunc(last, func(r string) bool { return r != "ok" })
	})
}

// refused waits until INSERTs on each connection were refused because another worker
// leads: so many that drivers prepare the statement under a name.
func (p *pool) refused(t testing.TB) {
	t.Helper()
	from := len(p.since(0))
	p.eventually(t, "the pool to be refused", func() bool {
		return len(slices.DeleteFunc(p.since(from), func(r string) bool { return r != "ZF002" })) >= 12*connections
	})
}

// toggle makes the program silent, or ends the silence.
func (p *pool) toggle(t testing.TB) {
	t.Helper()
	if err := p.answer(""); err != nil {
		t.Fatalf("tell the program: %v", err)
	}
}

// supersede lets another worker take over from the silent pool, and write.
func (p *pool) supersede(t testing.TB) *pgx.Conn {
	t.Helper()
	other := p.join(t, "other-1", "campaign", "wait")
	if _, err := other.Exec(context.Background(), "INSERT INTO work (what) VALUES ('other')"); err != nil {
		t.Fatalf("the other worker's write: %v", err)
	}
	return other
}
