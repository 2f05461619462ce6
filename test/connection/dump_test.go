package connection

import (
	"bytes"
	"net"
	"os"
	osexec "os/exec"
	"regexp"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestPgDumpNeedsNoResource: from 16 on, pg_dump reads as much without a resource as directly.
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
		want, err := dumped(t, direct, args)
		if err != nil {
			t.Fatalf("%v, directly: %v", args, err)
		}
		if got, err := dumped(t, through, args); err != nil || got != want {
			t.Errorf("%v: %v\n%s\ndirectly\n%s", args, err, got, want)
		}
	}
}

// key is random in each dump.
var key = regexp.MustCompile(`(?m)^\\(un)?restrict .*$`)

// dumped is what one of PostgreSQL's programs writes, or its error.
func dumped(t *testing.T, address string, args []string) (string, error) {
	t.Helper()
	host, port, _ := net.SplitHostPort(address)
	cmd := osexec.CommandContext(t.Context(), program(t, args[0]), append(args[1:len(args):len(args)], "-w", "-h", host, "-p", port, "-U", pgtest.App)...)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+pgtest.Password, "PGSSLMODE=disable")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return key.ReplaceAllString(string(out), ""), err
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
