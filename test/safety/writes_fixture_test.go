package safety

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
)

// writesCluster is a server of its own, of which every change is noticed, with a
// proxy in front of it. Workers are app, or the superuser, whom the control role
// may end because it is one too.
type writesCluster struct {
	*fixture.Cluster
	major int
	dir   string   // where the server may write files
	heard []string // payloads of notifications
	start string   // the position in the WAL when all was set up
}

// writesOnce is what the database is given first.
const writesOnce = `
create schema ext; grant usage on schema ext to public;
create extension dblink schema ext; create extension postgres_fdw schema ext; create extension pg_walinspect schema ext;
grant execute on function ext.dblink_connect_u(text, text) to app; grant usage on foreign data wrapper postgres_fdw to app, other;
grant execute on function lo_import(text), lo_export(oid, text) to app`

// writesRoles are the rights that make most paths pass for app.
const writesRoles = `
alter role app createdb createrole replication;
grant pg_execute_server_program, pg_read_server_files, pg_write_server_files to app;
create role other; grant other to app with admin option;
create role remote login superuser;
create role wp_role; grant wp_role to app with admin option`

// writesObjects are what the paths work on. {db} and {port} name the database and
// its server.
const writesObjects = `
drop schema public cascade;
alter database {db} owner to app;
create schema public authorization app; grant all on schema public to other;
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
create cast (pair as int) with function wrp(pair);
set role app;
insert into t values (1, 'one'), (2, 'two'), (3, 'three'); insert into c values (1, 'one'); insert into secured values (1); insert into kept values (7); insert into identified (v) values ('x');
refresh materialized view m;
select lo_from_bytea(4700, '\x01'), lo_create(4701);
reset role`

// eachWritesCluster runs the test on the default server and on PostgreSQL 18.
func eachWritesCluster(t *testing.T, test func(h *writesCluster)) {
	t.Parallel()
	for name, major := range map[string]int{"default": 0, "18": 18} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newWritesCluster(t, major))
		})
	}
}

func newWritesCluster(t *testing.T, major int) *writesCluster {
	t.Helper()
	opts := []pgtest.Option{pgtest.WithConfig(map[string]string{"max_wal_senders": "5", "checkpoint_timeout": "1h", "log_min_error_statement": "panic"})}
	if major > 0 {
		opts = append(opts, pgtest.WithBinaries(pgtest.Binaries(t, major)))
	}
	pg := pgtest.Start(t, opts...)
	p := fixture.NewProxy(t, pg, func(c *proxy.Config) {
		c.Policy = discards // every user may connect, and read
	})
	p.Elector.ControlAs(pgtest.Superuser)
	h := &writesCluster{Cluster: &fixture.Cluster{Proxy: p, T: t, DB: pg.Database(t)}}
	h.listen()
	h.makeFiles()
	for _, sql := range strings.Split(writesRoles, ";") {
		h.Exec(sql)
	}
	h.Exec("create database wp_db strategy file_copy") // which takes a tenth of the time
	h.Exec("alter database wp_db owner to app")
	h.Exec(writesOnce)
	h.Exec(h.fill(writesObjects))
	h.major = h.Number("select current_setting('server_version_num')::int / 10000")
	h.start = h.mark(t).position
	return h
}

// listen opens the administrator's connection, which is notified on the channel wp.
func (h *writesCluster) listen() {
	h.T.Helper()
	cfg, err := pgx.ParseConfig(h.PG.DSN(pgtest.Superuser, h.DB))
	if err != nil {
		h.T.Fatal(err)
	}
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { h.heard = append(h.heard, n.Payload) }
	cfg.RuntimeParams["client_min_messages"] = "error"
	if h.Admin, err = pgx.ConnectConfig(h.T.Context(), cfg); err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(func() { _ = h.Admin.Close(h.T.Context()) })
	h.Exec("listen wp")
}

// makeFiles makes what the server reads, and a place for a tablespace.
func (h *writesCluster) makeFiles() {
	h.T.Helper()
	h.dir = filepath.Join(h.PG.SocketDir(), "written")
	space := filepath.Join(h.dir, "space")
	owner, err := os.Stat(h.PG.DataDir())
	for _, err := range []error{
		err, os.MkdirAll(space, 0o777), os.Chmod(h.dir, 0o777), chownLike(space, owner),
		os.WriteFile(filepath.Join(h.dir, "in"), []byte("80\tfile\n"), 0o644),
	} {
		if err != nil {
			h.T.Fatal(err)
		}
	}
}

// chownLike gives a file to the owner of another, if this user may.
func chownLike(path string, like os.FileInfo) error {
	st, ok := like.Sys().(*syscall.Stat_t)
	if !ok || os.Getuid() != 0 {
		return nil
	}
	return os.Chown(path, int(st.Uid), int(st.Gid))
}

// fill puts the names of the cluster into a text.
func (h *writesCluster) fill(sql string) string {
	return strings.NewReplacer("{db}", h.DB, "{port}", strconv.Itoa(h.PG.Port()), "{dir}", h.dir).Replace(sql)
}

func (h *writesCluster) connect(t *testing.T, user string, more ...string) *wiretest.Conn {
	t.Helper()
	c, _ := wiretest.Connect(t, h.Addr, append([]string{"user", user, "database", h.DB, "client_encoding", "UTF8", "application_name", "worker"}, more...)...)
	return c
}
