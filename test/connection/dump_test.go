package connection

import (
	"io"
	"net"
	"os"
	osexec "os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

// sessions are the options of sessions that may read, by name. From 16 on, all of them can run pg_dump; on 15, only those
// that may write.
var sessions = map[string]string{
	"no resource": "",
	"an observer": "-c fencepost.resource=r -c fencepost.worker=backup -c fencepost.campaign=off",
	"a follower":  "-c fencepost.resource=r -c fencepost.worker=other",
	"the leader":  asLeader,
	"allow":       "", // through a proxy at which the user may write unfenced
}

const asLeader = "-c fencepost.resource=r -c fencepost.worker=w"

// TestPgDumpNeedsNoResource: what pg_dump and pg_dumpall write is what they write directly. The leader restores it, and so
// does a user with unfenced.users: allow.
func TestPgDumpNeedsNoResource(t *testing.T) {
	t.Parallel()
	// Each needs a server of its own: pg_dumpall reads all roles and their settings, which other tests change.
	t.Run("default", func(t *testing.T) { t.Parallel(); testPgDump(t, pgtest.Start(t)) })
	t.Run("18", func(t *testing.T) {
		t.Parallel()
		testPgDump(t, pgtest.Start(t, pgtest.WithBinaries(pgtest.Binaries(t, 18))))
	})
}

func testPgDump(t *testing.T, pg *pgtest.Server) {
	p, db := fixture.NewProxy(t, pg, open), pg.Database(t)
	allow := fixture.NewProxy(t, pg, func(cfg *proxy.Config) {
		cfg.Policy = func(fencing.JoinRequest) proxy.SessionPolicy {
			return proxy.SessionPolicy{Unfenced: proxy.UnfencedAllow}
		}
	})
	pg.Exec(t, pgtest.Superuser, db, "create table kept (a int primary key, b text default 'x')", "insert into kept values (1), (2)",
		"create view shown as select * from kept", "create sequence counted", "create function one() returns int language sql as 'select 1'",
		"select lo_from_bytea(0, 'large')", "analyze kept",
		"grant select on all tables in schema public to app", "grant select on all sequences in schema public to app")
	leading(t, p, db)
	direct, through, allowed := asVersion15(t, pg.Addr()), asVersion15(t, p.Addr), asVersion15(t, allow.Addr)
	major := fencing.ServerMajor(pgtest.Ask[string](t, pg, db, "show server_version"))
	dumps := [][]string{
		{"pg_dumpall", "-l", db, "--no-role-passwords", "--exclude-database=*"},
		{"pg_dump", "-n", "public", "-d", db},
	}
	if major < 17 { // of which pg_dump 15 does not know a column
		dumps = append(dumps, []string{"pg_dump", "-n", "public", "-F", "d", "-j", "2", "-d", db, "-f", "DIRECTORY"}) // several sessions, one snapshot
	}
	for _, args := range dumps {
		want, err := dumped(t, direct, "", args)
		if err != nil {
			t.Fatalf("%v, directly: %v", args, err)
		}
		for name, options := range sessions {
			at := through
			if name == "allow" {
				at = allowed
			}
			got, err := dumped(t, at, options, args)
			if major < 16 && args[0] == "pg_dump" && name != "allow" && name != "the leader" {
				if err == nil {
					t.Errorf("%v as %s is not refused on 15, where only proven reads run", args, name)
				}
			} else if err != nil || got != want {
				t.Errorf("%v as %s: %v\n%s\ndirectly\n%s", args, name, err, got, want)
			}
		}
	}
	text, err := dumped(t, direct, "", []string{"pg_dump", "-O", "-x", "-t", "kept", "-d", db})
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]*fixture.Proxy{"the leader": p, "allow": allow} {
		into := pg.Database(t)
		leading(t, p, into)
		if out, err := run(t, at.Addr, sessions[name], strings.NewReader(text), []string{"psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", into}); err != nil {
			t.Fatalf("%s restores: %v\n%s", name, err, out)
		}
		if n := pgtest.Ask[int](t, pg, into, "select count(*) from public.kept"); n != 2 {
			t.Errorf("%s has restored %d rows", name, n)
		}
	}
}

// newer is what pg_dump 16 to 18 send and that of 15 does not.
const newer = `SET transaction_timeout = 0;
BEGIN;
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SELECT set_config(name, 'view, foreign-table', false) FROM pg_settings WHERE name = 'restrict_nonsystem_relation_kind';
SELECT pg_catalog.pg_export_snapshot() IS NOT NULL;
LOCK TABLE public.kept, public.shown IN ACCESS SHARE MODE;
SELECT seqtypid::regtype, seqstart, last_value, is_called FROM pg_catalog.pg_sequence, pg_get_sequence_data(seqrelid) ORDER BY seqrelid;
PREPARE getAttributeStats(pg_catalog.name[], pg_catalog.name[]) AS SELECT s.schemaname, s.tablename, s.attname, s.n_distinct
	FROM pg_catalog.pg_stats s JOIN unnest($1, $2) WITH ORDINALITY AS u (schemaname, tablename, ord) USING (schemaname, tablename) ORDER BY u.ord, s.attname;
EXECUTE getAttributeStats('{public}', '{kept}');
COPY public.kept (a, b) TO stdout;
COMMIT;
`

// TestStatementsOfNewerDumps run as an observer and without a resource as they do directly.
func TestStatementsOfNewerDumps(t *testing.T) {
	t.Parallel()
	pg := pgtest.SharedMajor(t, 18)
	p, db := fixture.NewProxy(t, pg, open), pg.Database(t)
	pg.Exec(t, pgtest.Superuser, db, "create table kept (a int primary key, b text default 'x')", "insert into kept values (1), (2)", "create view shown as select * from kept",
		"create sequence counted", "analyze kept", "grant select on all tables in schema public to app", "grant select on all sequences in schema public to app")
	psql := []string{"psql", "-XAt", "-v", "ON_ERROR_STOP=1", "-d", db}
	want, err := run(t, pg.Addr(), "", strings.NewReader(newer), psql)
	if err != nil || !strings.Contains(want, "public|kept|a|") {
		t.Fatalf("directly: %v\n%s", err, want)
	}
	for _, name := range []string{"no resource", "an observer", "a follower"} {
		if got, err := run(t, p.Addr, sessions[name], strings.NewReader(newer), psql); err != nil || got != want {
			t.Errorf("as %s: %v\n%s\ndirectly\n%s", name, err, got, want)
		}
	}
}

// key is random in each dump.
var key = regexp.MustCompile(`(?m)^\\(un)?restrict .*$`)

// dumped is what one of PostgreSQL's programs writes, or its error. DIRECTORY in args stands for a directory that it makes;
// of one, the result is what pg_restore makes of it.
func dumped(t *testing.T, address, options string, args []string) (string, error) {
	t.Helper()
	directory := args[len(args)-1] == "DIRECTORY"
	if directory {
		args = append(args[:len(args)-1:len(args)-1], t.TempDir()+"/dump")
	}
	out, err := run(t, address, options, nil, args)
	if directory && err == nil {
		var restored []byte
		restored, err = osexec.CommandContext(t.Context(), program(t, "pg_restore"), "-f", "-", args[len(args)-1]).Output()
		out = string(restored)
	}
	return key.ReplaceAllString(out, ""), err
}

// run runs one of PostgreSQL's programs with this input, and returns what it writes.
func run(t *testing.T, address, options string, input io.Reader, args []string) (string, error) {
	t.Helper()
	host, port, _ := net.SplitHostPort(address)
	cmd := osexec.CommandContext(t.Context(), program(t, args[0]), append(args[1:len(args):len(args)], "-w", "-h", host, "-p", port, "-U", pgtest.App)...)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+pgtest.Password, "PGSSLMODE=disable", "PGOPTIONS="+options)
	cmd.Stdin, cmd.Stderr = input, os.Stderr
	out, err := cmd.Output()
	return string(out), err
}

// asVersion15 returns an address that leads to one of a server, which says there that it is 15: pg_dump refuses
// a server that is newer than itself.
func asVersion15(t *testing.T, address string) string {
	t.Helper()
	version := regexp.MustCompile("server_version\x001[678]\\.")
	return fixture.NewRelay(t, "tcp", address, func() fixture.Passing {
		return fixture.Passing{ToClient: func(piece []byte) []byte { return version.ReplaceAll(piece, []byte("server_version\x0015.")) }}
	}).Addr
}
