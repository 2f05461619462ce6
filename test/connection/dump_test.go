package connection

import (
	"bytes"
	"io"
	"net"
	"os"
	osexec "os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestPgDumpNeedsNoResource: from 16 on, pg_dump reads as much without a resource, or as an observer of one, as directly. A
// leader restores what it writes.
func TestPgDumpNeedsNoResource(t *testing.T) {
	t.Parallel()
	pg := pgtest.SharedMajor(t, 18)
	p, db := fixture.NewProxy(t, pg, open), pg.Database(t)
	admin := pg.Connect(t, pgtest.Superuser, db)
	if _, err := admin.Exec(t.Context(), `create table kept (a int primary key, b text default 'x'); insert into kept values (1), (2);
		create view shown as select * from kept; create sequence counted; create function one() returns int language sql as 'select 1';
		grant select on all tables in schema public to app; grant select on all sequences in schema public to app`); err != nil {
		t.Fatal(err)
	}
	through, direct := asVersion15(t, p.Addr), asVersion15(t, pg.Addr())
	for _, args := range [][]string{{"pg_dump", "-n", "public", "-d", db}, {"pg_dumpall", "-l", db, "--no-role-passwords", "--exclude-database=*"}} {
		want, err := dumped(t, direct, "", args)
		if err != nil {
			t.Fatalf("%v, directly: %v", args, err)
		}
		for _, options := range []string{"", "-c fencepost.resource=r -c fencepost.worker=backup -c fencepost.campaign=off"} {
			if got, err := dumped(t, through, options, args); err != nil || got != want {
				t.Errorf("%v with options %q: %v\n%s\ndirectly\n%s", args, options, err, got, want)
			}
		}
	}
	text, err := dumped(t, through, "", []string{"pg_dump", "-O", "-x", "-t", "kept", "-d", db})
	if err != nil {
		t.Fatal(err)
	}
	into := pg.Database(t)
	leading(t, p, into)
	if out, err := run(t, p.Addr, "-c fencepost.resource=r -c fencepost.worker=w", strings.NewReader(text), []string{"psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", into}); err != nil {
		t.Fatalf("the leader restores: %v\n%s", err, out)
	}
	if n := pgtest.Ask[int](t, pg, into, "select count(*) from public.kept"); n != 2 {
		t.Errorf("%d rows were restored", n)
	}
}

// key is random in each dump.
var key = regexp.MustCompile(`(?m)^\\(un)?restrict .*$`)

// dumped is what one of PostgreSQL's programs writes, or its error.
func dumped(t *testing.T, address, options string, args []string) (string, error) {
	t.Helper()
	out, err := run(t, address, options, nil, args)
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

// asVersion15 returns an address that leads to one of a server of 18, which says there that it is 15: pg_dump refuses
// a server that is newer than itself.
func asVersion15(t *testing.T, address string) string {
	t.Helper()
	return fixture.NewRelay(t, "tcp", address, func() fixture.Passing {
		return fixture.Passing{ToClient: func(piece []byte) []byte {
			return bytes.ReplaceAll(piece, []byte("server_version\x0018."), []byte("server_version\x0015."))
		}}
	}).Addr
}
