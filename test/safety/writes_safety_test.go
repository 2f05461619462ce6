package safety

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// readsHold is the version from which on the server's read-only mode holds, so
// that who does not lead may run what only that mode sees through.
const readsHold = 16

// eachPath runs the test for each path of the cluster as a subtest. Without the
// fence one failure says it all, and what it wrote spoils the rest.
func (h *writesCluster) eachPath(test func(t *testing.T, p writePath)) {
	h.reset(h.t, h.fenced)
	for _, p := range h.paths() {
		if !h.t.Run(name(p.name), func(t *testing.T) { test(t, p) }) && !fencing.Checking {
			return
		}
	}
}

// unchanged has prepare make ready what it then runs, and fails the test if that
// changed anything. The mark says so at little cost, and may say so though nothing
// was: then it is all done again, between two looks at everything.
func (h *writesCluster) unchanged(t *testing.T, p writePath, prepare func() (run func())) {
	t.Helper()
	changed := ""
	if len(p.before) == 0 {
		run := prepare()
		before := h.mark(t, h.fenced)
		run()
		h.settle(t, h.fenced)
		if !fencing.Checking || h.mark(t, h.fenced) == before {
			return
		}
		changed = difference(h.within(t, h.fenced), h.fenced.start) + difference(h.around(t, h.fenced), h.shared)
	}
	run := prepare()
	state, versions, wal := h.state(t, h.fenced), h.fenced.versions(t), h.walAt(t)
	run()
	if !fencing.Checking || p.temp {
		return
	}
	h.settle(t, h.fenced)
	if changed += difference(h.state(t, h.fenced), state) + difference(h.fenced.versions(t), versions) + h.spoken(t, wal); changed != "" {
		t.Errorf("something was changed:\n%s", changed)
		h.reset(t, h.fenced)
	}
}

func (h *writesCluster) walAt(t *testing.T) string {
	t.Helper()
	return h.fenced.lines(t, "select pg_current_wal_insert_lsn()::text")[0]
}

// spoken is what the WAL says since an LSN that is no change of a row, but was
// asked for: messages, restore points, switches.
func (h *writesCluster) spoken(t *testing.T, since string) string {
	t.Helper()
	if since == h.walAt(t) {
		return ""
	}
	h.fenced.exec(t, "select pg_logical_emit_message(true, 'the end', '')") // so that there is a record, and all are flushed
	return strings.Join(h.fenced.once(t, fmt.Sprintf(`select concat_ws(' ', resource_manager, record_type, description)
		from ext.pg_get_wal_records_info('%s', pg_current_wal_flush_lsn())
		where (resource_manager = 'LogicalMessage' or record_type in ('RESTORE_POINT', 'SWITCH', 'CHECKPOINT_ONLINE')) and description !~ 'the end'`, since)), "\n")
}

// TestSafetyWritePathsOfTheSuperseded: a worker that led, and has been
// superseded since without its proxy knowing, changes nothing in any way, and
// its connection is over. FENCEPOST_TEST_ALL_FORMS runs all forms.
func TestSafetyWritePathsOfTheSuperseded(t *testing.T) {
	eachWritesCluster(t, func(h *writesCluster) {
		s := &fixture.Cluster{Proxy: h.Proxy, T: h.t, DB: h.fenced.db, Admin: h.fenced.admin}
		h.eachPath(func(t *testing.T, p writePath) {
			s := s.With(t)
			forms := slices.DeleteFunc(h.some(p, h.fenced, refusedForms), func(f form) bool { return f.readOnly })
			h.unchanged(t, p, func() func() {
				conns := h.led(t, s, p, forms)
				return func() { h.superseded(t, forms, conns) }
			})
			if len(p.before) > 0 {
				h.reset(t, h.fenced)
			}
		})
	})
}

// led opens a connection per form, each of a worker that led and does no more.
func (h *writesCluster) led(t *testing.T, s *fixture.Cluster, p writePath, forms []form) (conns []*wiretest.Conn) {
	t.Helper()
	fill := func(sql string) string { return h.fill(sql, h.fenced) }
	for i, f := range forms {
		worker := fmt.Sprintf("w%d.%d", i, s.Elector.Next())
		params := h.params(p, h.fenced, "fencepost.resource", "r", "fencepost.worker", worker)
		s.Grant(worker)
		c, _ := wiretest.Connect(t, h.Addr, params...)
		before, ended := sendPieces(t, c, append(queries(p.before, fill), f.first...)...)
		if state := wiretest.ErrorOf(before); state != "" || ended {
			t.Fatalf("%s: what comes before fails: %v", f.name, before)
		}
		conns = append(conns, c)
	}
	s.Supersede()
	return conns
}

// superseded runs each form on its connection, whose worker was superseded.
func (h *writesCluster) superseded(t *testing.T, forms []form, conns []*wiretest.Conn) {
	t.Helper()
	for i, f := range forms {
		all, ended := sendPieces(t, conns[i], f.pieces...)
		last := wiretest.Message{}
		if len(all) > 0 {
			last = all[len(all)-1]
		}
		if wiretest.ErrorOf(all) != "ZF001" || last.Fields()['V'] != "FATAL" || !ended {
			t.Errorf("%s: want FATAL ZF001 and the end, got %v", f.name, transcriptOf(all, ended, h.fenced.db))
		}
		_ = conns[i].Close()
	}
}

// TestSafetyWritePathsOfThoseWhoDoNotLead: a worker that does not lead, and a
// connection without a resource that may only read, change nothing in any way.
// Each is refused where Postgres would have failed, and lives on.
func TestSafetyWritePathsOfThoseWhoDoNotLead(t *testing.T) {
	eachWritesCluster(t, func(h *writesCluster) {
		s := &fixture.Cluster{Proxy: h.Proxy, T: h.t, DB: h.fenced.db, Admin: h.fenced.admin}
		s.Connect("leader")
		s.Grant("leader")
		h.eachPath(func(t *testing.T, p writePath) {
			h.unchanged(t, p, func() func() {
				return func() {
					h.refusesAll(t, p, "a follower", "fencepost.resource", "r", "fencepost.worker", "follower")
					h.refusesAll(t, p, "one without a resource")
				}
			})
		})
	})
}

// refusesAll runs each form of p on one connection of who does not lead.
func (h *writesCluster) refusesAll(t *testing.T, p writePath, who string, more ...string) {
	t.Helper()
	c, _ := wiretest.Connect(t, h.Addr, h.params(p, h.fenced, more...)...)
	sendPieces(t, c, queries(p.before, func(sql string) string { return h.fill(sql, h.fenced) })...)
	for _, f := range h.some(p, h.fenced, refusedForms) {
		all, ended := sendPieces(t, c, append(f.first, f.pieces...)...)
		got := wiretest.ErrorOf(all)
		passes := p.reads && (h.major >= readsHold || len(more) == 0) && got == ""
		absent := p.temp && h.major >= readsHold && got == "42P01" // the statement before it was refused
		if !passes && !absent && got != "ZF002" || ended || strings.Contains(fmt.Sprint(all), "FATAL") {
			t.Errorf("%s, %s: want ZF002, got\n  %s", who, f.name, strings.Join(transcriptOf(all, ended, h.fenced.db), "\n  "))
		}
		if rest, over := sendPieces(t, c, Q("rollback"), Q("select 1")); over || wiretest.ErrorOf(rest) != "" {
			t.Errorf("%s, %s: the connection is of no use any more: %v", who, f.name, rest)
			break
		}
	}
	leaveNow(c)
}
