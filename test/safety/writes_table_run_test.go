package safety

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// snapshot is what is seen of the server at one time: the mark, and with care
// everything else.
type snapshot struct {
	mark            string
	state, versions []string
	wal             string
}

func (x *table) snapshot(careful bool) (s snapshot) {
	switch {
	case !careful && x.seen != "":
		s.mark = x.seen
		return s
	case !careful:
		s.mark = x.mark(x.t, x.fenced)
		return s
	}
	s.state, s.versions = x.state(x.t, x.fenced), x.fenced.versions(x.t)
	s.wal = x.walAt(x.t)
	return s
}

// since is what has changed since then, "" if nothing has. Without care it may
// say that something has though nothing was.
func (x *table) since(s snapshot) string {
	if s.mark == "" {
		return difference(x.state(x.t, x.fenced), s.state) + difference(x.fenced.versions(x.t), s.versions) + x.spoken(x.t, s.wal)
	}
	if now := x.mark(x.t, x.fenced); now != s.mark {
		return "the mark of the server, now (+) and before (-):\n" + difference(strings.Split(now, "\n"), strings.Split(s.mark, "\n"))
	}
	x.seen = s.mark
	return ""
}

// locksSQL is what sessions of the workers have locked, but for what reading
// locks, and what a grant waits for.
const locksSQL = `
select concat_ws(' ', l.locktype, l.relation::regclass, l.mode) from pg_locks l join pg_stat_activity a using (pid)
where a.application_name = 'worker' and a.datname = current_database() and l.granted and l.mode <> 'AccessShareLock'
	and l.locktype not in ('virtualxid', 'advisory')`

// locks are what stands in the way of others. To plan a cursor over a function of
// SQL, the server locks the tables of the function's body as its statements would
// have it, in read-only mode too. Before 16 nobody is held by that mode alone.
func (x *table) locks(c cell) []string {
	all := x.fenced.lines(x.t, locksSQL)
	if x.major >= readsHold && c.path.kind() == "declare" {
		all = slices.DeleteFunc(all, func(l string) bool { return l == "relation t RowExclusiveLock" })
	}
	return all
}

// runCell runs a cell, and fails the test, with what runs it alone, if the
// promise did not hold.
func (x *table) runCell(c cell) {
	var found string
	if c.who == leader {
		found = x.asLeader(c)
	} else {
		found = x.asOther(c)
	}
	if found != "" {
		x.t.Errorf("%s\n\tgo test ./test/safety -run TestSafetyTableOfWrites -cell %q\n%s", c, c, found)
	}
}

// asOther is a cell of one who may not write. What the mark says may be the
// server's own doing: then all is run again, and everything is looked at.
func (x *table) asOther(c cell) string {
	x.clean()
	found, changed := x.attempt(c, false)
	if found == "" && changed == "" {
		return ""
	}
	x.dirty = true
	x.twice++
	if changed != "" && fencing.Checking {
		x.closeAll()
		x.settleTo(0)
		if len(c.path.before) == 0 {
			changed = difference(x.within(x.t, x.fenced), x.fenced.start) + difference(x.around(x.t, x.fenced), x.shared)
		}
		if len(c.path.before) > 0 || changed == "" {
			x.clean()
			var more string
			more, changed = x.attempt(c, true)
			found = found + more
			x.dirty = true
		}
	}
	if changed != "" {
		found += "something was changed:\n" + changed
	}
	return found
}

// clean brings the fenced side back to the start, if it may have left it.
func (x *table) clean() {
	if x.dirty {
		x.seen = ""
		x.closeAll()
		x.reset(x.t, x.fenced)
		x.dirty = false
	}
}

// attempt runs the cell once. found is what was wrong for certain, changed what
// was changed.
func (x *table) attempt(c cell, careful bool) (found, changed string) {
	if c.who.led() || careful {
		x.seen = "" // it may write yet
	}
	s, was, plan := x.speaker(c), x.holder, c.script(x.filled)
	defer x.undo(c, was)
	found = x.lead(c, s, plan)
	before := x.snapshot(careful)
	s.send(plan.late)
	x.settled(c, s)
	locks := x.locks(c)
	if len(locks) > 0 && !c.path.temp {
		found += "locked: " + strings.Join(locks, ", ") + "\n"
	}
	if len(plan.end) > 0 && !s.ended && !(careful && len(locks) > 0) { // what is locked cannot be looked at
		changed = x.since(before)
		if err := x.grant(); err != nil {
			found += fmt.Sprintf("no grant: %v\n", err)
		}
		before = x.snapshot(careful)
		s.send(plan.end)
	}
	if s.err != nil {
		found += s.err.Error() + "\n" + strings.Join(transcriptOf(s.all, s.ended, x.fenced.db), "\n")
	}
	// Who led may have changed something before: to parse some statements runs them.
	x.dirty = x.dirty || c.who.led() && len(c.path.before)+len(plan.early) > 0
	if careful && len(locks) == 0 { // before what belongs to the session goes with it
		x.settled(c, s)
		changed += x.since(before)
	}
	x.done(c, s)
	x.settleTo(x.live)
	if !careful || len(locks) > 0 {
		changed += x.since(before)
	}
	if c.path.temp { // what comes before has changed something, and it goes with the session
		changed = ""
	}
	return found, changed
}

// lead runs all up to the change of the standing, and changes it. Who says the
// epoch does so last, or first where what comes early leaves no room.
func (x *table) lead(c cell, s *speaker, plan cellScript) (found string) {
	s.send(x.beginning(c))
	s.send(plan.setup)
	room := len(plan.early) == 0 || c.transport == preparedBefore
	if c.who.saying() && !room {
		next := x.epoch
		if c.who == unawareSaying {
			next++
		}
		s.send([]sending{saying(next)})
	}
	s.send(plan.early)
	if err := x.change(c); err != nil {
		found = fmt.Sprintf("no grant: %v\n", err)
	}
	if c.who.saying() && room {
		s.send([]sending{saying(x.epoch)})
	}
	x.settled(c, s)
	return found
}

func saying(epoch int64) sending { return ask1(Q(fmt.Sprintf("set fencepost.epoch = %d", epoch))) }

func (x *table) filled(sql string) string { return x.fill(sql, x.fenced) }

// beginning is what the session does before its path.
func (x *table) beginning(c cell) (all []sending) {
	for _, b := range queries(c.path.before, x.filled) {
		all = append(all, ask1(b))
	}
	return all
}

// settled waits until a backend that has nothing to live for is gone, and the
// others wait for their clients.
func (x *table) settled(c cell, s *speaker) {
	live := x.live
	if s.ended || c.who == superseded {
		live--
	}
	if len(c.path.before) == 0 { // else dblink may have backends too
		x.settleTo(live)
	}
}

func (x *table) settleTo(live int) {
	const sql = `select (count(*) > %d or count(*) filter (where state = 'active' and wait_event is distinct from 'ClientRead') > 0)::int::text
		from pg_stat_activity where datname = current_database() and application_name = 'worker'`
	fixture.Eventually(x.t, "the workers' backends are at rest", func() bool {
		return x.fenced.lines(x.t, fmt.Sprintf(sql, live))[0] == "0"
	})
}

// asLeader is a cell of a leader: the same is said, and the same is done, as
// without a proxy.
func (x *table) asLeader(c cell) string {
	x.closeAll()
	x.dirty, x.seen = true, ""
	want, state := x.alone(c, x.direct, x.PG.Addr())
	got, refused := x.alone(c, x.fenced, x.Addr, "options", "-c fencepost.resource=r -c fencepost.worker="+x.worker)
	var found string
	if !slices.Equal(want.said, got.said) {
		found += fmt.Sprintf("Postgres says\n  %.4000s\nFencepost says\n  %.4000s\n", strings.Join(want.said, "\n  "), strings.Join(got.said, "\n  "))
	}
	if d := difference(want.around, got.around); d != "" || !want.within.is(got.within) {
		found += "Postgres (+) and Fencepost (-) do not do the same:\n" + d + difference(x.within(x.t, x.direct), x.within(x.t, x.fenced))
	}
	if state == "" && refused == "" && !want.changed && !c.path.unseen && !c.path.temp {
		found += "Postgres itself changed nothing:\n  " + strings.Join(want.said, "\n  ")
	}
	return found
}

// alone runs a leader's cell on one side. refused is the first SQLSTATE of an
// error, but for the one that a cell begins with.
func (x *table) alone(c cell, at *side, address string, more ...string) (o outcome, refused string) {
	x.reset(x.t, at)
	fill := func(sql string) string { return x.fill(sql, at) }
	conn, _ := wiretest.Connect(x.t, address, x.params(c.path, at, more...)...)
	s := &speaker{Conn: conn}
	for _, b := range queries(c.path.before, fill) {
		s.send([]sending{ask1(b)})
	}
	plan := c.script(fill)
	s.send(plan.setup)
	around, within := x.shared, *at.base
	if len(c.path.before) > 0 {
		around, within = x.heard(x.t, at), at.digest(x.t)
	}
	for _, part := range [][]sending{plan.early, plan.late, plan.end, {ask1(Q("select count(*) from pg_class where relname = 'c'"))}} {
		s.send(part)
	}
	if s.err != nil {
		x.t.Fatalf("%s: %v after\n%s", c, s.err, strings.Join(transcriptOf(s.all, s.ended, at.db), "\n"))
	}
	o.said = transcriptOf(s.all, s.ended, at.db)
	leaveNow(conn)
	x.settle(x.t, at)
	o.around, o.within = x.heard(x.t, at), at.digest(x.t)
	o.changed = difference(o.around, around) != "" || !o.within.is(within)
	at.now = &o.within
	for _, m := range s.all {
		if m.Type == 'E' && m.Fields()['C'] != "22012" && m.Fields()['C'] != "25P02" {
			refused = m.Fields()['C']
		}
	}
	return o, refused
}
