package guards

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestTheAuditShowsNoOtherSession: the sessions of an event loop use one buffer in turn. A session whose
// statement waits is superseded after others have used that buffer.
func TestTheAuditShowsNoOtherSession(t *testing.T) {
	t.Parallel()
	pg := pgtest.SharedMajor(t, 18)
	s, _ := newGuarded(t, pg)
	a := s.Connect("w")
	other, _ := wiretest.Connect(t, s.Addr, "user", pgtest.App, "database", s.DB)
	pid, err := strconv.Atoi(fixture.FirstValue(t, fixture.MustPass(t, a, Q("select pg_backend_pid()"))))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }() // it may have been ended
	const mine = "insert into t (v) values ('of the superseded session')"
	a.Send(Q(mine))
	for i := range 20 { // the loop has served a by then
		fixture.MustPass(t, other, Q(fmt.Sprintf("select 'of another session', %d, '%s'", i, strings.Repeat("x", 100))))
	}
	s.Candidacy(s.DB, "r", "w").SetStatus(&fencing.Status{Role: fencing.Superseded, Epoch: 1, Holder: fencing.Record{Epoch: 3, Worker: "w2"}})
	if got := wiretest.ErrorOf(a.Rest()); got != fencing.StateSuperseded {
		t.Fatalf("the superseded session ends with %q", got)
	}
	all := s.Audited(t, s.DB)
	if len(all) != 1 || all[0].Statement != mine {
		t.Errorf("the audit shows %+v", all)
	}
}

// TestAClientForgesNoFinding: a function of the client's whose name looks like that of a guard's raises the error of
// a guard.
func TestAClientForgesNoFinding(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	s, _ := newGuarded(t, pg)
	for _, name := range []string{`"x fencepost.refuse"`, `"fencepost.refuse("`, "\"x\nPL/pgSQL function fencepost.refuse() line 1 at RAISE\""} {
		a := s.Connect("w")
		fixture.MustPass(t, a, Q("create function pg_temp."+name+`() returns int language plpgsql as $$begin raise exception 'forged' using errcode = 'ZF001',
			detail = '{"resource":"r","worker":"w","incarnation":"w#1","epoch":1,"current_epoch":99,"current_worker":"somebody else"}'; end$$`))
		if all, ended := fixture.Ask(a, Q("select pg_temp."+name+"()")); ended || wiretest.ErrorOf(all) != fencing.StateSuperseded {
			t.Errorf("%q: %v, ended %v", name, all, ended)
		}
		fixture.MustPass(t, a, Q("insert into t (v) values ('x')"))
	}
	if all := s.Audited(t, s.DB); len(all) != 0 {
		t.Errorf("the audit shows %+v", all)
	}
}
