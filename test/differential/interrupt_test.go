package differential

import (
	"bytes"
	"slices"
	"strconv"
)

// interrupt inserts Flushes between the messages of a script, and splits some of the
// messages.
func (g *generator) interrupt() {
	if g.IntN(3) == 0 {
		for range 1 + g.IntN(4) {
			g.insert(g.IntN(len(g.steps)), flushStep)
		}
	}
	if g.IntN(4) == 0 {
		for range 1 + g.IntN(2) {
			at := g.IntN(len(g.steps))
			// The server ends a COPY over the first byte of a message that has no place there.
			// The proxy waits for the whole message, which comes at once from every client.
			if n := len(g.steps[at].bytes()); n > 1 && (g.steps[at].name == "CopyData" || !g.copiesBefore(at)) {
				g.insert(at, step{"Half", []word{bare(strconv.Itoa(1 + g.IntN([]int{min(n-1, 5), n - 1}[g.IntN(2)])))}})
			}
		}
	}
	if g.wild && g.IntN(3) == 0 {
		for range 1 + g.IntN(3) {
			g.insert(g.IntN(len(g.steps)), step{"Cancel", []word{bare("now")}})
		}
	}
}

// copiesBefore reports whether a COPY may be under way before the step with that index.
func (g *generator) copiesBefore(at int) bool {
	return slices.ContainsFunc(g.steps[:at], func(s step) bool { return bytes.Contains(s.bytes(), []byte("from stdin")) })
}

// insert inserts s before the step with that index.
func (g *generator) insert(at int, s step) {
	if at > 0 && g.steps[at-1].name == "Half" {
		at-- // which belongs to the next message
	}
	g.steps = append(g.steps[:at:at], append([]step{s}, g.steps[at:]...)...)
}

// epoch sets the epoch for which the client writes.
func (g *generator) epoch() {
	sql := "set fencepost.epoch = 1"
	if g.wild {
		sql = placed(g.Rand, []string{
			"set fencepost.epoch = {n}", "set fencepost.epoch = {i}", "set fencepost.epoch = 0", "set fencepost.epoch = -1", "set fencepost.epoch = '9223372036854775807'",
			"set fencepost.epoch = ''", "set fencepost.epoch = default", "reset fencepost.epoch", "set local fencepost.epoch = {n}", "show fencepost.epoch", "show fencepost.role",
			"set fencepost.epoch = {n}; insert into t values ({i}, 'named')", "begin; set fencepost.epoch = {n}; insert into t values ({i}, 'named'); commit",
			"select set_config('fencepost.epoch', '{n}', false)", "set fencepost.resource = 'other'", "set fencepost.worker = 'other'",
		}[g.IntN(16)])
	}
	if g.IntN(3) == 0 {
		g.add(parseOf("", sql), bindOf("", "", nil), executeOf("", 0))
		g.maybeSync(8)
		return
	}
	g.query(sql)
}

// cancel cancels a sleeping statement, alone or after others.
func (g *generator) cancel() {
	g.sync()
	g.query("rollback")
	sql := placed(g.Rand, []string{
		"select pg_sleep(30)", "insert into t select {i}, pg_sleep(30)::text", "begin; insert into t values ({i}, 'c'); select pg_sleep(30)",
		"insert into t values ({i}, 'c'); select pg_sleep(30)", "do $$begin perform pg_sleep(30); end$$",
	}[g.IntN(5)])
	if g.IntN(3) == 0 {
		sql = []string{"select pg_sleep(30)", "select wr(30) from pg_sleep(30)"}[g.IntN(2)]
		g.run()
		g.add(parseOf("", sql), bindOf("", "", nil), executeOf("", 0), syncStep)
	} else {
		g.add(query(sql))
	}
	g.add(step{name: "Cancel"})
	g.ready()
	g.query("rollback")
}

// beside makes another session notify this one. The reply to a later request may come
// before or after the notification, but in any case after it was sent.
func (g *generator) beside() {
	if g.IntN(2) == 0 {
		g.query("listen ch")
	}
	g.sync()
	g.add(waitReady, step{"Beside", []word{quoted(placed(g.Rand, "notify ch, 'beside {i}'"))}}, query("select 1"), waitReady)
}
