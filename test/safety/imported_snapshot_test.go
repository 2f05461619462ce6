package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// oldSnapshot is a worker that leads and was told, and the id of a snapshot that was
// exported before its grant. That snapshot does not see the row that the worker before it
// wrote to c.
type oldSnapshot struct {
	*fixture.Cluster
	leader *wiretest.Conn
	id     string
}

// longComment makes a text too long to be read.
var longComment = " -- " + strings.Repeat("x", 1<<20)

const (
	repeatableRead = "begin isolation level repeatable read"
	lateInsert     = "insert into t (v) select 'late' from c"
)

func newOldSnapshot(t *testing.T, pg *pgtest.Server) *oldSnapshot {
	t.Helper()
	s := &oldSnapshot{Cluster: fixture.NewCluster(t, pg)}
	s.Leader("predecessor")
	exporter := pg.Connect(t, pgtest.Superuser, s.DB)
	if _, err := exporter.Exec(t.Context(), repeatableRead); err != nil {
		t.Fatal(err)
	}
	if err := exporter.QueryRow(t.Context(), "select pg_export_snapshot()").Scan(&s.id); err != nil {
		t.Fatal(err)
	}
	s.Exec("insert into c values (2, 'the last of the predecessor')")
	s.leader = s.Leader("w")
	return s
}

// imports is the statement that imports the snapshot.
func (s *oldSnapshot) imports() string { return "set transaction snapshot '" + s.id + "'" }

// write begins a block, imports the snapshot by the messages before, and sends a write, which
// must fail with code.
func (s *oldSnapshot) write(name, code string, before [][]byte, write ...[]byte) {
	s.T.Helper()
	fixture.MustPass(s.T, s.leader, Q(repeatableRead))
	fixture.MustPass(s.T, s.leader, before...)
	if all, ended := fixture.Ask(s.leader, write...); ended || wiretest.ErrorOf(all) != code {
		s.T.Errorf("%s: %v, ended %v; want %s", name, all, ended, code)
	}
	fixture.MustPass(s.T, s.leader, Q("rollback"))
}

// onBothVersions runs a test on the default version and on 18.
func onBothVersions(t *testing.T, test func(t *testing.T, pg *pgtest.Server)) {
	for major, pg := range map[string]*pgtest.Server{"default": pgtest.Shared(t), "18": pgtest.SharedMajor(t, 18)} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			test(t, pg)
		})
	}
}

// TestSafetyAnImportedSnapshotIsOld: a leader writes under a snapshot that was exported
// before its grant, by statements in front of which a check cannot always stand.
func TestSafetyAnImportedSnapshotIsOld(t *testing.T) {
	t.Parallel()
	onBothVersions(t, func(t *testing.T, pg *pgtest.Server) {
		s := newOldSnapshot(t, pg)
		fixture.MustPass(t, s.leader, Parse("snapshot", s.imports()), Sync())
		for name, w := range map[string]struct {
			code string
			sent [][]byte
		}{
			"plain":                       {"40001", [][]byte{Q(lateInsert)}},
			"shows its text":              {"40001", [][]byte{Q(lateInsert + " where current_query() <> ''")}},
			"a text that shows itself":    {"40001", [][]byte{Q("select current_query(); " + lateInsert)}},
			"a copy that shows its text":  {"40001", [][]byte{Q("copy t (v) from stdin where current_query() <> ''")}},
			"do":                          {"40001", [][]byte{Q("do $$begin " + lateInsert + "; end$$")}},
			"too long to be read":         {"40001", [][]byte{Q(lateInsert + longComment)}},
			"of an unknown number":        {"ZF005", [][]byte{Q(lateInsert + "; select 1" + longComment)}},
			"a function call":             {"ZF005", [][]byte{call(2026)}},
			"as messages":                 {"40001", [][]byte{Run(lateInsert), Sync()}},
			"as messages, not to be read": {"40001", [][]byte{Run(lateInsert + " \xff"), Sync()}},
			"as messages, shows its text": {"40001", [][]byte{Run(lateInsert + " where current_query() <> ''"), Sync()}},
		} {
			s.write(name, w.code, [][]byte{Bind("", "snapshot"), Exec("", 0), Sync()}, w.sent...)
		}
		for name, text := range map[string]string{
			"40001": repeatableRead + "; " + s.imports() + "; " + lateInsert + " where current_query() <> ''; commit",
			"ZF005": repeatableRead + "; " + s.imports() + "; " + lateInsert + "; commit" + longComment,
		} {
			fixture.MustFail(t, s.leader, name, Q(text))
			fixture.MustPass(t, s.leader, Q("rollback"))
		}
		// The registry covers what follows a LOCK TABLE, but not behind an import.
		const lock = "lock table t in row exclusive mode"
		for _, first := range [][]string{{lock, s.imports()}, {s.imports(), lock}} {
			fixture.MustPass(t, s.leader, Q(repeatableRead))
			fixture.MustPass(t, s.leader, Q(first[0]))
			fixture.MustPass(t, s.leader, Q(first[1]))
			fixture.MustFail(t, s.leader, "40001", Q(lateInsert))
			fixture.MustPass(t, s.leader, Q("rollback"))
		}
		s.nothingLate()
		// One that is not old, and a check that comes first.
		fixture.MustPass(t, s.leader, Q(repeatableRead))
		fixture.MustPass(t, s.leader, Q("insert into t (v) values ('own')"))
		fixture.MustPass(t, s.leader, Q(lateInsert+" where current_query() <> ''"))
		fixture.MustPass(t, s.leader, Q("commit"))
	})
}

// TestSafetyASnapshotIsImportedUnseen: nothing that Fencepost knows of the statement says
// that it imports a snapshot.
func TestSafetyASnapshotIsImportedUnseen(t *testing.T) {
	t.Parallel()
	onBothVersions(t, func(t *testing.T, pg *pgtest.Server) {
		s := newOldSnapshot(t, pg)
		unread := Q(lateInsert + "; select 1" + longComment)
		for name, text := range map[string]string{
			"backslash": s.imports() + ` -- \ `,
			"long":      s.imports() + " -- " + strings.Repeat("x", 1100),
			"forgotten": s.imports(),
		} {
			fixture.MustPass(t, s.leader, Parse(name, text), Sync())
		}
		fixture.MustPass(t, s.leader, Q("do $$begin null; /* deallocate */ end$$"))
		for _, name := range []string{"backslash", "long", "forgotten"} {
			run := [][]byte{Bind("", name), Exec("", 0), Sync()}
			s.write(name, "ZF005", run, unread)
			s.write(name+", then messages", "40001", run, Parse("", lateInsert+" \xff"), Bind("", ""), Exec("", 0), Sync())
		}
		fixture.MustFail(t, s.leader, "ZF005",
			Q("do $$begin commit; set transaction isolation level repeatable read; "+s.imports()+"; "+lateInsert+"; end$$"))
		s.nothingLate()
	})
}

// nothingLate asks on another connection than the exporter's, which sees nothing new.
func (s *oldSnapshot) nothingLate() {
	s.T.Helper()
	if n := s.Rows("late"); n != 0 {
		s.T.Errorf("%d rows were written under a snapshot from before the grant", n)
	}
}
