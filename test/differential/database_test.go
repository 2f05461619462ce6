package differential

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// standing is how scripts are run in a database.
type standing int

const (
	unfenced standing = iota // past the proxy
	fenced                   // through the proxy
	guarded                  // through the proxy, with guarded tables
)

// database is a database with the tables that scripts use, and a direct connection to
// read them.
type database struct {
	cluster *cluster
	name    string
	asking  sync.Mutex // held while admin is used
	admin   *pgx.Conn
	fence   *store.Fence // nil for direct connections
	guards  string       // SQL that guards the tables, or gives them triggers that refuse nothing; "" for neither
	heard   []string     // notifications received by admin

	fresh    contents // the initial contents
	now      contents // the contents as last read
	rebuilds int
}

// contents is what scripts can have written.
type contents struct {
	shape string   // a digest of the catalog's rows
	rows  []string // of each part of rowsSQL; nil if the shape is not the initial one
	full  string   // of contentsSQL, if requested
}

// same reports whether nothing has changed in a database between two reads.
func (c contents) same(d contents) bool {
	return c.shape == d.shape && c.like(d)
}

// like reports whether two databases, or one at two times, have the same contents.
func (c contents) like(d contents) bool {
	if c.rows != nil && d.rows != nil {
		return slices.Equal(c.rows[:compared], d.rows[:compared])
	}
	return c.full == d.full
}

func (c contents) String() string {
	if c.full != "" {
		return c.full
	}
	return strings.Join(c.rows[:compared], "\n")
}

func newDatabase(t *testing.T, h *cluster, as standing) *database {
	t.Helper()
	r := &database{cluster: h, name: h.PG.Database(t)}
	if err := r.reopen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.admin.Close(context.Background()) })
	if as != unfenced {
		r.fence = h.Elector.Fence(r.name, "r")
		h.Elector.Fence(r.name, "other") // scripts choose it, which would make its fence: a change of the shape
	}
	if as == guarded {
		r.guards = guardsOf(r.fence.ID())
	}
	if err := r.rebuild(); err != nil {
		t.Fatal(err)
	}
	return r
}

// candidacy gives a worker a new candidacy, as if it were its first.
func (r *database) candidacy(worker string) *fixture.FakeCandidacy {
	return r.cluster.Elector.NewCandidacy(r.name, worker, r.fence)
}

// reopen connects once the server accepts connections.
func (r *database) reopen() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		conn, err := r.listen(ctx)
		if err == nil {
			r.admin = conn
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("connect to read the database: %w", err)
		}
	}
}

// listen connects as the administrator, who receives the scripts' notifications.
func (r *database) listen(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(r.cluster.PG.DSN(pgtest.Superuser, r.name))
	if err != nil {
		return nil, err
	}
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { r.heard = append(r.heard, n.Channel+" "+n.Payload) }
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "listen ch"); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

func (r *database) do(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.asking.Lock()
	defer r.asking.Unlock()
	if _, err := r.admin.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%.100s: %w", sql, err)
	}
	return nil
}

// ask reads one value.
func (r *database) ask(into any, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.asking.Lock()
	defer r.asking.Unlock()
	if err := r.admin.QueryRow(ctx, sql, args...).Scan(into); err != nil {
		return fmt.Errorf("%.60s: %w", sql, err)
	}
	return nil
}

// look records the contents of the database.
func (r *database) look() (err error) {
	var c contents
	if err := r.ask(&c.shape, shapeSQL); err != nil {
		return err
	}
	if c.shape == r.fresh.shape {
		err = r.ask(&c.rows, rowsSQL)
	} else {
		err = r.ask(&c.full, contentsSQL)
	}
	r.now = c
	return err
}

// lookAtAll also records what can be compared with another database.
func (r *database) lookAtAll() error {
	if r.now.full != "" {
		return nil
	}
	return r.ask(&r.now.full, contentsSQL)
}

// tidy restores the initial state of the database after a look.
func (r *database) tidy() error {
	if r.now.shape != r.fresh.shape {
		if err := r.do(tidySQL); err != nil {
			return r.rebuild()
		}
		if err := r.look(); err != nil {
			return err
		}
		if r.now.shape != r.fresh.shape {
			return r.rebuild()
		}
	}
	var sql strings.Builder
	for i, p := range parts {
		if r.now.rows[i] != r.fresh.rows[i] && !strings.Contains(sql.String(), p.refill) {
			sql.WriteString(p.refill)
		}
	}
	if sql.Len() == 0 {
		return nil
	}
	if err := r.do(sql.String()); err != nil {
		return err
	}
	if err := r.look(); err != nil {
		return err
	}
	if !r.now.same(r.fresh) {
		return fmt.Errorf("the database cannot be restored: it is\n%s\nand was\n%s", r.now, r.fresh)
	}
	return nil
}

// rebuild recreates the database from scratch.
func (r *database) rebuild() error {
	if r.rebuilds++; r.rebuilds%50 == 0 { // dead rows of the catalog slow it down
		if err := r.do("vacuum pg_class, pg_attribute, pg_type, pg_proc, pg_depend, pg_index, pg_namespace, pg_constraint, pg_trigger, pg_rewrite, pg_attrdef, pg_sequence, pg_description"); err != nil {
			return err
		}
	}
	if err := r.do(rebuild + initialSQL + r.guards); err != nil {
		return err
	}
	if err := r.ask(&r.fresh.shape, shapeSQL); err != nil {
		return err
	}
	before := r.fresh
	if err := r.look(); err != nil {
		return err
	}
	if before.rows != nil && !r.now.same(before) {
		return fmt.Errorf("the database cannot be rebuilt: it is\n%s\nand was\n%s", r.now, before)
	}
	r.fresh = r.now
	return nil
}
