package safety

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// readsHold is the version from which on the server's read-only mode holds, so
// that who does not lead may run what only that mode sees through.
const readsHold = 16

// atOnce is how many paths are taken between two looks at what has changed, by workers who are superseded by one grant
// or do not lead.
const atOnce = 25

// discarding is the resource of the writes cluster whose stale writes are discarded.
const discarding = "discarding"

func discards(r fencing.JoinRequest) (p proxy.SessionPolicy) {
	if r.Resource == discarding {
		p.OnStale = proxy.DiscardStale
	}
	return p
}

// paths are those that the server knows.
func (h *writesCluster) paths() []writePath {
	return slices.DeleteFunc(writePaths(), func(p writePath) bool { return p.since > h.major })
}

// attempt is a path, and a connection on which it is tried.
type attempt struct {
	writePath
	form
	conn *wiretest.Conn
}

func (a attempt) String() string { return a.writePath.name + ", " + a.form.name }

// led makes a worker lead, which opens a connection per path and does no more on it
// than what comes before. Another worker then supersedes it.
func (h *writesCluster) led(resource string, turn int, paths []writePath) (all []attempt) {
	h.T.Helper()
	worker := fmt.Sprintf("w%d", h.Elector.Next())
	h.GrantOn(resource, worker)
	for i, p := range paths {
		a := attempt{p, h.executed(p, turn+i), h.connect(h.T, p.user(), "fencepost.resource", resource, "fencepost.worker", worker)}
		before := queries(p.before, h.fill)
		if resource != discarding {
			before = append(before, a.first...)
		}
		if got, ended := sendPieces(h.T, a.conn, before...); ended || wiretest.ErrorOf(got) != "" {
			h.T.Fatalf("%s: what comes before fails: %v", a, got)
		}
		all = append(all, a)
	}
	h.SupersedeOn(resource)
	return all
}

// TestSafetyWritePathsUnderDiscard: where stale writes are discarded, a worker that led, and has been superseded since
// without its proxy knowing, changes nothing in any way. From 16 on, what a single statement says that it writes is
// answered as if it had changed nothing. The rest is refused, and the session goes on.
func TestSafetyWritePathsUnderDiscard(t *testing.T) {
	eachWritesCluster(t, func(h *writesCluster) {
		// The grants return as soon as the proxy has let go of its sessions.
		h.PG.DrainsPatiently(h.T, h.DB)
		h.Elector.SetGrace(time.Minute)
		ended := 0
		h.supersedes(discarding, func(a attempt) {
			if h.isDiscarded(a) {
				ended++
			}
		})
		if all := len(h.paths()); ended > all/4 {
			h.T.Errorf("the grants have ended %d of %d sessions at rest, which are to go on", ended, all)
		}
	})
}

// supersedes runs all paths on connections of workers that were superseded.
func (h *writesCluster) supersedes(resource string, try func(attempt)) {
	h.T.Helper()
	for i, paths := range slices.Collect(slices.Chunk(h.paths(), atOnce)) {
		all := h.led(resource, i, paths)
		h.unchanged(h.T, func() {
			for _, a := range all {
				try(a)
			}
		})
		for _, a := range all { // what belongs to a session goes with it
			leaveNow(a.conn)
		}
		if h.T.Failed() && !fencing.Checking {
			return
		}
	}
}

var (
	discardable = regexp.MustCompile(`^(?:with .*\) )?(?:insert|update|delete|merge) `)
	changed     = regexp.MustCompile(`^(?:INSERT 0|UPDATE|DELETE|MERGE) [1-9]`)
)

// isDiscarded fails the test unless the attempt changes nothing and the session goes
// on. It reports whether the grant has ended the session, because the proxy was held up.
func (h *writesCluster) isDiscarded(a attempt) (ended bool) {
	h.T.Helper()
	single := h.major >= readsHold && a.call == nil && !slices.ContainsFunc(a.sql, func(sql string) bool {
		return !discardable.MatchString(sql) || strings.Contains(sql, `\'`) // which is not read
	})
	all, ended := sendPieces(h.T, a.conn, slices.Concat(a.first, a.pieces)...)
	got := wiretest.ErrorOf(all)
	if ended && got == "ZF001" && len(all) == 1 {
		return true
	}
	wrong := ended || got != "" && got != "ZF001" || strings.Contains(fmt.Sprint(all), "FATAL")
	if single && !strings.HasPrefix(a.form.name, "one text") {
		wrong = wrong || got != ""
	}
	for _, m := range all {
		wrong = wrong || m.Type == 'C' && changed.Match(m.Body)
	}
	if wrong {
		h.T.Errorf("%s: want no change or ERROR ZF001, got\n  %s", a, strings.Join(transcriptOf(all, ended), "\n  "))
	}
	if rest, over := sendPieces(h.T, a.conn, Q("rollback"), Q("select 1")); over || wiretest.ErrorOf(rest) != "" {
		h.T.Errorf("%s: the connection is of no use any more: %v", a, rest)
	}
	return false
}

// TestSafetyWritePathsOfThoseWhoDoNotLead: a worker that does not lead, one whose
// lease is not confirmed, and a connection without a resource that may only read,
// change nothing in any way. Each is refused where Postgres would have failed, and
// lives on.
func TestSafetyWritePathsOfThoseWhoDoNotLead(t *testing.T) {
	eachWritesCluster(t, func(h *writesCluster) {
		h.Grant("lapsed")
		lapsed := *h.Candidacy(h.DB, "r", "lapsed").Status()
		lapsed.Role, lapsed.Lapsed = fencing.Follower, true
		h.Candidacy(h.DB, "r", "lapsed").SetStatus(&lapsed)
		outside := func(who string, more ...string) *outsider {
			return &outsider{who: who, params: more, conns: map[string]*wiretest.Conn{}}
		}
		all := []*outsider{
			outside("a follower", "fencepost.resource", "r", "fencepost.worker", "follower"),
			outside("one whose lease is not confirmed", "fencepost.resource", "r", "fencepost.worker", "lapsed"),
			outside("one without a resource"),
		}
		for i, paths := range slices.Collect(slices.Chunk(h.paths(), atOnce)) {
			h.unchanged(h.T, func() {
				for j, p := range paths {
					turn := i*atOnce + j
					for k, r := range all {
						h.refusesAll(r, p, h.refused(p, turn, turn%len(all) == k))
					}
					if h.T.Failed() && !fencing.Checking {
						return // what it wrote spoils the rest
					}
				}
			})
			if h.T.Failed() && !fencing.Checking {
				return
			}
		}
	})
}

// outsider are connections of one who does not lead, by their users.
type outsider struct {
	who    string
	params []string
	conns  map[string]*wiretest.Conn
}

// refusesAll sends p in these forms on a connection of one who does not lead.
func (h *writesCluster) refusesAll(r *outsider, p writePath, forms []form) {
	h.T.Helper()
	c := r.conns[p.user()]
	if c == nil {
		c = h.connect(h.T, p.user(), r.params...)
		r.conns[p.user()] = c
	}
	sendPieces(h.T, c, queries(p.before, h.fill)...)
	for _, f := range forms {
		all, ended := sendPieces(h.T, c, append(f.first, f.pieces...)...)
		got := wiretest.ErrorOf(all)
		passes := p.reads && got == "" && (h.major >= readsHold || len(r.params) == 0)
		// From 16 on, what needs the statement before it is sent, and that one was refused.
		absent := h.major >= readsHold && (p.temp && got == "42P01" || slices.Equal(p.before, preparesInsert) && got == "26000")
		if !passes && !absent && got != "ZF002" || ended || strings.Contains(fmt.Sprint(all), "FATAL") {
			h.T.Errorf("%s, %s, %s: want ZF002, got\n  %s", r.who, p.name, f.name, strings.Join(transcriptOf(all, ended), "\n  "))
		}
		if rest, over := sendPieces(h.T, c, Q("rollback"), Q("select 1")); over || wiretest.ErrorOf(rest) != "" {
			h.T.Errorf("%s, %s, %s: the connection is of no use any more: %v", r.who, p.name, f.name, rest)
			delete(r.conns, p.user())
			return
		}
	}
	if rest, _ := sendPieces(h.T, c, Q("discard all")); wiretest.ErrorOf(rest) != "" {
		h.T.Errorf("%s, %s: DISCARD ALL: %v", r.who, p.name, rest)
	}
}
