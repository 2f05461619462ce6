package discard

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}

// schema has whatever an executed statement would leave a trace in: triggers, defaults, and
// functions that are called.
const schema = `
create table log (what text);
create function logs() returns trigger language plpgsql as 'begin insert into log values (tg_op); return null; end';
create trigger before before insert or update or delete on t for each statement execute function logs();
create trigger after after insert or update or delete on t for each statement execute function logs();
create sequence s;
create function forget() returns void language plpgsql as 'begin execute ''deallocate all''; end';
create table d (id int primary key, n bigint default nextval('s'), c int references c on delete cascade);
insert into t (v) values ('kept'), ('kept too'); truncate log; insert into d (id, c) values (1, 1);
grant all on all tables in schema public to app; grant all on all sequences in schema public to app;
alter table c owner to app; alter table t owner to app`

// undoing is what undoes a transaction's read-only mode before PostgreSQL 16 while a statement
// is planned: a function called IMMUTABLE, and the CHECK of a parameter's domain.
const undoing = `
create function undo(v text) returns boolean language plpgsql as $$begin execute 'reset transaction_read_only'; insert into t (v) values (v); return true; end$$;
create function undo_early() returns int language plpgsql immutable as $$begin perform undo('planned'); return 1; end$$;
create domain undone as text check (undo(value));
create table u (a undone);
grant all on u to app`

// contents is what the database holds.
const contents = `select concat_ws(' ', (select count(*) from log), (select string_agg(t::text, ',' order by id) from t),
	(select string_agg(d::text, ',') from d), (select string_agg(c::text, ',') from c),
	(select last_value from s), (select last_value from t_id_seq), (select count(*) from pg_largeobject_metadata))`

// onServers runs a test on each server, with a database behind a proxy that discards.
func onServers(t *testing.T, test func(c *fixture.Cluster)) {
	t.Helper()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) { test(discarding(t, pg)) })
}

// since16 runs a test on PostgreSQL 18. Before 16 nothing is discarded.
func since16(t *testing.T, test func(c *fixture.Cluster)) {
	t.Helper()
	test(discarding(t, pgtest.SharedMajor(t, 18)))
}

// discarding is a cluster whose proxy discards stale writes.
func discarding(t *testing.T, pg *pgtest.Server) *fixture.Cluster {
	t.Helper()
	c := fixture.NewCluster(t, pg, fixture.WithPolicy(proxy.SessionPolicy{OnStale: proxy.DiscardStale}))
	c.PG.DrainsPatiently(t, c.DB)
	c.Elector.SetGrace(30 * time.Second)
	c.Exec(schema)
	return c
}

// holds returns what the database holds.
func holds(c *fixture.Cluster) (text string) {
	c.T.Helper()
	if err := c.Admin.QueryRow(c.T.Context(), contents).Scan(&text); err != nil {
		c.T.Fatal(err)
	}
	return text
}

// answers formats messages as a client notices them: no rows' contents, no parameters.
func answers(all []wiretest.Message) string {
	var words []string
	for _, m := range all {
		switch m.Type {
		case 'C':
			words = append(words, string(m.Body[:len(m.Body)-1]))
		case 'E', 'N':
			f := m.Fields()
			words = append(words, fmt.Sprintf("%s:%s", f['V'], f['C']))
		case 'Z':
			words = append(words, "Z"+string(m.Body))
		case 'S':
			if name, value, _ := strings.Cut(string(m.Body), "\x00"); name == "fencepost.role" {
				words = append(words, "role="+strings.TrimRight(value, "\x00"))
			}
		default:
			words = append(words, string(m.Type))
		}
	}
	return strings.Join(words, " ")
}
