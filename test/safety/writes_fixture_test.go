package safety

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

// writesCluster is a server of its own, since the write paths change what
// databases share, with a proxy in front of it. Workers are app, or the
// superuser, whom the control role may end because it is one too.
type writesCluster struct {
	*fixture.Proxy
	t      *testing.T
	major  int
	second bool   // its server is not the default one
	dir    string // where the server may write files
	direct *side
	fenced *side
	shared []string // what is to be around the databases to start from
}

// side is one of the two databases that are compared.
type side struct {
	db    string
	admin *pgx.Conn
	heard []string // payloads of notifications
	// base is what the database holds to start from, and now what it held when a
	// session of a worker's was last done with it; nil if that is not known.
	base, now *digest
	start     []string // base, to be read
	resets    int
}

// writesOnce is what a database of the cluster is given once.
const writesOnce = `
create schema ext; grant usage on schema ext to public;
create extension dblink schema ext; create extension postgres_fdw schema ext;
grant execute on function ext.dblink_connect_u(text, text) to app; grant usage on foreign data wrapper postgres_fdw to app, other;
grant execute on function lo_import(text), lo_export(oid, text) to app`

// writesRoles are the rights that make most paths pass for app.
const writesRoles = `
alter role app createdb createrole replication;
grant pg_execute_server_program, pg_read_server_files, pg_write_server_files to app;
create role other; grant other to app with admin option;
create role remote login superuser`

// writesReset drops whatever the paths left in a database. {db} and {port} name
// the database and its server.
const writesReset = `
reset role; reset session authorization;
do $$
declare x record;
begin
  for x in select format('drop event trigger %I', evtname) as d from pg_event_trigger loop execute x.d; end loop;
  for x in select format('drop publication %I', pubname) as d from pg_publication loop execute x.d; end loop;
  for x in select format('drop schema %I cascade', nspname) as d from pg_namespace where nspname !~ '^pg_|^(ext|fencepost|information_schema)$' loop execute x.d; end loop;
  for x in select format('drop extension %I cascade', extname) as d from pg_extension where extname not in ('plpgsql', 'dblink', 'postgres_fdw', 'pg_walinspect') loop execute x.d; end loop;
  for x in select format('drop server %I cascade', srvname) as d from pg_foreign_server loop execute x.d; end loop;
  for x in select format('drop foreign data wrapper %I', fdwname) as d from pg_foreign_data_wrapper where fdwname !~ '^(dblink_fdw|postgres_fdw)$' loop execute x.d; end loop;
  for x in select format('drop access method %I', amname) as d from pg_am where oid >= 16384 loop execute x.d; end loop;
  for x in select format('drop language %I', lanname) as d from pg_language where oid >= 16384 loop execute x.d; end loop;
  for x in select format('drop cast (%s as %s)', castsource::regtype, casttarget::regtype) as d from pg_cast where oid >= 16384 loop execute x.d; end loop;
  perform lo_unlink(oid) from pg_largeobject_metadata;
  for x in select format('alter default privileges for role %s revoke select on tables from public', defaclrole::regrole) as d from pg_default_acl loop execute x.d; end loop;
  delete from pg_db_role_setting;
end $$;
alter database {db} owner to app;
create schema public authorization app; grant all on schema public to other; comment on schema public is 'standard public schema';
create server loop foreign data wrapper postgres_fdw options (host '127.0.0.1', port '{port}', dbname '{db}');
create user mapping for app server loop options (user 'remote', password_required 'false');
alter server loop owner to app;
set role app;
create table t (id int primary key, v text);
create table c (id int primary key, v text);
create table d (id int primary key, t int references c (id) deferrable initially deferred);
create sequence s;
create type mood as enum ('sad', 'ok'); create type pair as (a int, b int);
create function wr(v text) returns text language sql volatile as 'insert into public.t select max(id) operator(pg_catalog.+) 1, $1 from public.t returning v';
create function wrb(v text) returns boolean language plpgsql volatile as 'begin perform public.wr(v); return true; end';
create function wri(int, int) returns int language plpgsql volatile as 'begin perform public.wr(''o''); return 0; end';
create function wrp(pair) returns int language plpgsql volatile as 'begin perform public.wr(''c''); return 0; end';
create function wrt() returns trigger language plpgsql as 'begin insert into public.t values (new.a + 100, ''trigger''); return new; end';
create domain wd as text check (wrb(value));
create domain sd as int check (nextval('public.s'::text) > 0);
create operator + (leftarg = int, rightarg = int, function = wri);
create view vw as select wr('view') as v;
create view upd as select * from t;
create table dt (id int, w wd);
create table triggered (a int); create trigger tr before insert on triggered for each row execute function wrt();
create table late (a int); create constraint trigger tr after insert on late deferrable initially deferred for each row execute function wrt();
create table ruled (a int); create rule ru as on insert to ruled do instead insert into t values (new.a + 200, 'rule');
create view insteaded as select 1 as a; create trigger tr instead of insert on insteaded for each row execute function wrt();
create table secured (a int); alter table secured enable row level security, force row level security;
create policy p on secured using (wrb('policy'));
create table identified (id int generated always as identity, v text);
create index ti on t (v);
create materialized view m as select id from t; create unique index on m (id);
create table part (a int) partition by list (a); create table part1 partition of part for values in (1); create table part2 partition of part for values in (2);
create procedure once(i int) language sql as 'insert into public.t values (i, ''called'')';
create procedure twice(i int) language plpgsql as $$begin insert into public.t values (i, 'p'); commit; insert into public.t values (i + 1, 'p'); end$$;
create procedure outs(inout i int) language plpgsql as $$begin insert into public.t values (i, 'p'); i := i + 1; end$$;
create foreign table ft (id int, v text) server loop options (table_name 't');
create foreign table fvw (v text) server loop options (table_name 'vw');
create table gone (a int); create view gonev as select 1 as a; create function gonef() returns int language sql as 'select 1'; create schema gones;
create table kept (a int);
reset role;
create cast (pair as int) with function wrp(pair)`

// writesRows puts the rows back into the tables of a database.
const writesRows = `
select lo_unlink(oid) from pg_largeobject_metadata;
set role app;
truncate t, c, d, triggered, late, ruled, dt, identified, kept, secured, part, gone restart identity;
insert into t values (1, 'one'), (2, 'two'), (3, 'three'); insert into c values (1, 'one'); insert into secured values (1); insert into kept values (7); insert into identified (v) values ('x');
select setval('s', 1, false); refresh materialized view m;
select lo_from_bytea(4700, '\x01'); select lo_create(4701);
reset role`

// writesGlobals drops whatever the paths left in the server.
var writesGlobals = []string{
	"alter system reset all", "drop tablespace if exists wp_made", "drop database if exists wp_db", "drop database if exists wp_made",
	"select pg_drop_replication_slot(slot_name) from pg_replication_slots", "drop role if exists wp_role", "drop role if exists wp_made", "create role wp_role", "grant wp_role to app with admin option", "alter role app reset all",
}

func newWritesCluster(t *testing.T, major int) *writesCluster {
	t.Helper()
	opts := []pgtest.Option{pgtest.WithConfig(map[string]string{"max_wal_senders": "5", "checkpoint_timeout": "1h", "log_min_error_statement": "panic"})}
	if major > 0 {
		opts = append(opts, pgtest.WithBinaries(pgtest.Binaries(t, major)))
	}
	pg := pgtest.Start(t, opts...)
	h := &writesCluster{t: t, second: major > 0, Proxy: fixture.NewProxy(t, pg, func(c *proxy.Config) {
		c.Policy = discards // every user may connect, and read
	})}
	h.Elector.ControlAs(pgtest.Superuser)
	pg.Exec(t, pgtest.Superuser, "postgres", strings.Split(writesRoles, ";")...)
	h.makeFiles()
	h.direct, h.fenced = h.newSide(), h.newSide()
	h.major = adminNumber(t, h.direct.admin, "select current_setting('server_version_num')::int / 10000")
	for _, x := range []*side{h.direct, h.fenced} {
		x.exec(t, writesOnce)
		x.exec(t, "create extension pg_walinspect schema ext")
	}
	return h
}

func (h *writesCluster) newSide() *side {
	x := &side{db: h.PG.Database(h.t)}
	cfg, err := pgx.ParseConfig(h.PG.DSN(pgtest.Superuser, x.db))
	if err != nil {
		h.t.Fatal(err)
	}
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { x.heard = append(x.heard, n.Payload) }
	cfg.RuntimeParams["lock_timeout"], cfg.RuntimeParams["client_min_messages"] = "15s", "error"
	if x.admin, err = pgx.ConnectConfig(h.t.Context(), cfg); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = x.admin.Close(h.t.Context()) })
	x.exec(h.t, "listen wp")
	return x
}

func (x *side) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := x.admin.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%.200s: %v", sql, err)
	}
}

func adminNumber(t *testing.T, admin *pgx.Conn, sql string) (n int) {
	t.Helper()
	if err := admin.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// reset brings one side, and what the two share, back to the start. Rows alone
// are put back alone, which takes a tenth of the time.
func (h *writesCluster) reset(t *testing.T, x *side) {
	t.Helper()
	h.settle(t, x)
	h.resetFiles(t)
	around := h.around(t, x)
	x.heard = nil
	now := x.now
	x.now = nil // whatever comes next
	shared := x.base != nil && difference(around, h.shared) == ""
	if shared {
		if now == nil {
			d := x.digest(t)
			now = &d
		}
		if now.is(*x.base) {
			return
		}
		if now.objects == x.base.objects {
			x.exec(t, writesRows)
			if difference(x.rows(t), x.base.rows) == "" {
				return
			}
		}
	}
	x.exec(t, "drop subscription if exists wp_made")
	if !shared {
		for _, sql := range writesGlobals {
			x.exec(t, sql)
		}
		x.exec(t, "create database wp_db strategy file_copy") // which takes a tenth of the time
		x.exec(t, "alter database wp_db owner to app")
	}
	if x.resets++; x.resets%10 == 0 {
		x.exec(t, "vacuum") // the catalog grows with each
	}
	x.exec(t, h.fill(writesReset, x))
	x.exec(t, writesRows)
	x.exec(t, writesRows) // as it is from the second time on
	if x.base == nil {    // later it is the same
		base := x.digest(t)
		x.base, x.start, h.shared = &base, h.within(t, x), h.around(t, x)
	}
}

// resetFiles empties the directory in which the server writes.
func (h *writesCluster) resetFiles(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(h.dir, "out*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.RemoveAll(f); err != nil {
			t.Fatal(err)
		}
	}
}

// makeFiles makes what the server reads, and a place for a tablespace.
func (h *writesCluster) makeFiles() {
	h.t.Helper()
	h.dir = filepath.Join(h.PG.SocketDir(), "written")
	space := filepath.Join(h.dir, "space")
	owner, err := os.Stat(h.PG.DataDir())
	for _, err := range []error{
		err, os.MkdirAll(space, 0o777), os.Chmod(h.dir, 0o777), chownLike(space, owner),
		os.WriteFile(filepath.Join(h.dir, "in"), []byte("80\tfile\n"), 0o644),
	} {
		if err != nil {
			h.t.Fatal(err)
		}
	}
}

// settle waits until no session of the workers' is left in the database.
func (h *writesCluster) settle(t *testing.T, x *side) {
	t.Helper()
	fixture.Eventually(t, "the workers' backends have ended", func() bool {
		return adminNumber(t, x.admin, "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and application_name = 'worker'") == 0
	})
}

// fill puts names of a side into a text.
func (h *writesCluster) fill(sql string, x *side) string {
	return strings.NewReplacer("{db}", x.db, "{port}", strconv.Itoa(h.PG.Port()), "{dir}", h.dir).Replace(sql)
}
