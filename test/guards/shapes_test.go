package guards

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// shapesSQL makes what the shapes write. The tables that roots names are guarded.
const shapesSQL = `
create table plain (id int primary key, v text);
create table counted (id serial, v text default 'x');
create table cleared (id int);
create table parted (id int, k int) partition by list (k);
create table parted_1 partition of parted for values in (1);
create table parted_2 partition of parted for values in (2);
create table parent (id int, v text);
create table child () inherits (parent);
create table head (id int primary key);
create table tail (id int, head int references head on update cascade on delete set null);
create table unguarded (id int);
create view simple as select id, v from plain;
create view instead as select 1 as id;
create function instead() returns trigger language plpgsql as $$begin insert into plain values (new.id, 'instead'); return new; end$$;
create trigger instead instead of insert on instead for each row execute function instead();
create table ruled (id int);
create rule also as on insert to ruled do also insert into plain values (new.id, 'ruled');
create trigger onward after insert on unguarded for each row execute function instead();
create function replica() returns void language sql security definer set session_replication_role = replica as 'insert into plain values (202)';
insert into plain select n, 'v' from generate_series(1, 20) n;
insert into parted values (1, 1), (2, 2); insert into parent values (1, 'p'); insert into child values (2, 'c');
insert into head values (1), (2); insert into tail values (1, 1), (2, 2); insert into cleared values (1);
grant all on all tables in schema public to app; grant all on all sequences in schema public to app`

var roots = []string{"plain", "counted", "cleared", "parted", "parent", "head", "tail"}

// shape is a way to write. rows is how many rows of guarded tables it leaves.
type shape struct {
	name, sql string
	rows      int
}

var shapes = []shape{
	{"INSERT", "insert into plain (id, v) values (101, 'a')", 1},
	{"INSERT DEFAULT VALUES", "insert into counted default values", 1},
	{"INSERT of a stamp", "insert into plain (id, fence_epoch) values (101, 99999)", 1},
	{"ON CONFLICT DO UPDATE", "insert into plain values (1) on conflict (id) do update set v = 'again'", 1},
	{"UPDATE", "update plain set v = 'b' where id = 1", 1},
	{"UPDATE of a view", "update simple set v = 'b' where id = 1", 1},
	{"UPDATE of the stamp", "update plain set fence_epoch = 99999 where id < 3", 2},
	{"DELETE", "delete from plain where id = 1", 0},
	{"TRUNCATE", "truncate cleared", 0},
	{"data-modifying CTE", "with x as (insert into plain values (101) returning id) select * from x", 1},
	{"MERGE", "merge into plain p using head h on p.id = h.id when matched then update set v = 'm'", 2},
	{"INSTEAD OF", "insert into instead values (101)", 1},
	{"DO ALSO", "insert into ruled values (101)", 1},
	{"DO", "do $$begin insert into plain values (101); end$$", 1},
	{"a partition through its parent", "insert into parted values (3, 1)", 1},
	{"a partition", "insert into parted_2 values (3, 2)", 1},
	{"from one partition to another", "update parted set k = 2 where id = 1", 1},
	{"TRUNCATE of a partition", "truncate parted_1", 0},
	{"children through their parent", "update parent set v = 'x'", 2},
	{"a child", "insert into child values (3)", 1},
	{"ON UPDATE CASCADE", "update head set id = 3 where id = 1", 2},
	{"ON DELETE SET NULL", "delete from head where id = 2", 1},
	{"replica role", "select replica()", 1},
	{"COPY", "copy plain (id) from stdin", 2},
	{"COPY with the stamp", "copy plain (id, fence_epoch) from stdin", 2},
	{"a trigger of another table", "insert into unguarded values (101)", 1},
}

// run runs a shape, as extended messages or as a Query.
func (s shape) run(ctx context.Context, conn *pgx.Conn, simple bool) error {
	switch {
	case s.name == "COPY":
		_, err := conn.PgConn().CopyFrom(ctx, strings.NewReader("101\n102\n"), s.sql)
		return err
	case strings.HasPrefix(s.name, "COPY"):
		_, err := conn.PgConn().CopyFrom(ctx, strings.NewReader("101\t99999\n102\t\\N\n"), s.sql)
		return err
	default:
		return exec(ctx, conn, s.sql, simple)
	}
}

// everything returns a query that counts the rows of all guarded tables for which a
// condition holds.
func everything(condition string) string {
	var parts []string
	for _, table := range roots {
		parts = append(parts, fmt.Sprintf("(select count(*) from %s where %s)", table, condition))
	}
	return "select " + strings.Join(parts, " + ")
}

// written are the rows of the transaction in hand.
const written = "xmin::text = (pg_current_xact_id()::text::numeric % 4294967296)::text"

// newShapes makes a cluster with the guarded tables, and a leader.
func newShapes(t *testing.T, pg *pgtest.Server) (*fixture.Cluster, *pgx.Conn) {
	t.Helper()
	c := fixture.NewCluster(t, pg)
	c.Exec(shapesSQL)
	_ = leader(c) // creates the resource
	for _, table := range roots {
		add(c, "public."+table)
	}
	c.Candidacy(c.DB, "r", "w").Grant() // learns of the guards, as a candidacy does that begins
	return c, c.Join("w")
}

// TestEveryWriteOfALeaderIsStamped runs each shape as the leader, in a block, which is then
// rolled back. All rows that it has written have the stamp of the epoch.
func TestEveryWriteOfALeaderIsStamped(t *testing.T) {
	t.Parallel()
	c, conn := newShapes(t, pgtest.Shared(t))
	e := epoch(c)
	for _, s := range shapes {
		for _, simple := range []bool{false, true} {
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
			if err := s.run(t.Context(), conn, simple); err != nil {
				t.Errorf("%s: %v", s.name, err)
			} else {
				var rows, stamped int
				if err := conn.QueryRow(t.Context(), everything(written)).Scan(&rows); err != nil {
					t.Fatalf("%s: %v", s.name, err)
				}
				if err := conn.QueryRow(t.Context(), everything(fmt.Sprintf("%s and fence_epoch = %d", written, e))).Scan(&stamped); err != nil {
					t.Fatalf("%s: %v", s.name, err)
				}
				if rows != s.rows || stamped != rows {
					t.Errorf("%s: wrote %d rows, %d with the stamp %d; want %d", s.name, rows, stamped, e, s.rows)
				}
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
		}
	}
	// Outside a block, where another form of the check stands in front.
	for i, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheStatement} {
		if _, err := conn.Exec(t.Context(), "insert into plain values ($1)", mode, 301+i); err != nil {
			t.Error(err)
		}
	}
	if n := c.Number(fmt.Sprintf("select count(*) from plain where id > 300 and fence_epoch = %d", e)); n != 3 {
		t.Errorf("%d rows of single statements are stamped, want 3", n)
	}
}

// TestSafetyGuardedTablesRefuseWritesPastTheProxy runs each shape past the proxy, without a
// registration, and when an epoch that is over was claimed: it is refused, and changes nothing.
func TestSafetyGuardedTablesRefuseWritesPastTheProxy(t *testing.T) {
	t.Parallel()
	c, _ := newShapes(t, pgtest.Shared(t))
	if !fencing.Checking {
		c.Exec(toothless)
	}
	mayClaim(c)
	direct := c.PG.Connect(t, pgtest.App, c.DB)
	all := func() (text string) {
		for _, table := range append([]string{"ruled", "unguarded"}, roots...) {
			var part string
			if err := c.Admin.QueryRow(t.Context(), fmt.Sprintf("select coalesce(string_agg(t::text || xmin, ' ' order by t::text), '') from %s t", table)).Scan(&part); err != nil {
				t.Fatal(err)
			}
			text += table + ": " + part + "\n"
		}
		return text
	}
	before := all()
	for _, claim := range []struct{ sql, state string }{{"select 1", ""}, {"select fencepost.claim('r', 1)", "ZF001"}} {
		if _, err := direct.Exec(t.Context(), claim.sql); pgtest.StateOf(err) != claim.state {
			t.Fatalf("%s: %v, want %q", claim.sql, err, claim.state)
		}
		for _, s := range shapes {
			if got := pgtest.StateOf(s.run(t.Context(), direct, false)); got != "ZF002" {
				t.Errorf("%s after %q: %q, want ZF002", s.name, claim.sql, got)
			}
			if after := all(); after != before {
				t.Fatalf("%s after %q has changed\n%s to\n%s", s.name, claim.sql, before, after)
			}
		}
	}
}

// toothless makes the triggers let everybody pass, for the build that fences nothing.
const toothless = `create or replace function fencepost.refuse(fence integer, options text[], target oid) returns void language plpgsql as 'begin end'`
