package differential

import (
	"math/rand/v2"
	"strconv"
	"strings"
)

// generator generates one script.
type generator struct {
	*rand.Rand
	steps []step
	waits int  // at how many of ten possible places it waits for ReadyForQuery
	wild  bool // see generateAs
}

// generate generates the script of a seed, which is always the same. A leader whose
// epoch is 1 gets the same replies as from Postgres.
func generate(seed uint64) script { return generateAs(seed, false) }

// generateAs generates a script. If it is wild, the client also names epochs that it does not
// have, and cancels whatever is running. The replies then depend on timing and are Fencepost's own.
func generateAs(seed uint64, wild bool) script {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0)), wild: wild}
	g.waits = []int{0, 3, 10}[g.IntN(3)]
	if g.IntN(25) == 0 {
		g.forget()
	}
	for range 2 + g.IntN(10) {
		g.unit()
	}
	if g.IntN(3) > 0 {
		g.add(syncStep)
	}
	if g.IntN(12) == 0 {
		g.add(step{name: "Hangup"})
	} else {
		g.add(step{name: "Terminate"})
	}
	g.interrupt()
	s := script{steps: g.steps, free: wild}
	if g.IntN(2) == 0 {
		s.cut = g.Uint64()
	}
	return s
}

func (g *generator) add(s ...step) { g.steps = append(g.steps, s...) }

// ready is a place where a client may wait for ReadyForQuery.
func (g *generator) ready() {
	if g.IntN(10) < g.waits {
		g.add(waitReady)
	}
}

func (g *generator) query(sql string) {
	g.add(query(sql))
	g.ready()
}

func (g *generator) sync() {
	g.add(syncStep)
	g.ready()
}

// unit adds a group of related steps.
func (g *generator) unit() {
	units := []struct {
		weight int
		add    func()
	}{
		{22, func() { g.query(text(g.Rand)) }},
		{10, g.block},
		{20, func() { g.run(); g.maybeSync(8) }},
		{10, g.pipeline},
		{10, g.named},
		{8, g.noise},
		{6, g.portal},
		{6, g.copyIn},
		{4, g.functionCall},
		{2, g.malformed},
		{4, g.keptBySQL},
		{4, g.cursor},
		{3, g.doubtful},
		{1, g.timeout},
		{2, g.largeObject},
		{3, func() { g.sync() }},
		{2, g.epoch},
		{1, g.cancel},
		{2, g.beside},
	}
	sum := 0
	for _, u := range units {
		sum += u.weight
	}
	n := g.IntN(sum)
	for _, u := range units {
		if n -= u.weight; n < 0 {
			u.add()
			return
		}
	}
}

func (g *generator) maybeSync(of10 int) {
	if g.IntN(10) < of10 {
		g.sync()
	}
}

// block is a transaction of simple messages.
func (g *generator) block() {
	g.query([]string{"begin", "begin", "BEGIN;", "begin isolation level repeatable read", "start transaction read only", "begin isolation level serializable"}[g.IntN(6)])
	for range 1 + g.IntN(4) {
		g.query(text(g.Rand))
	}
	g.query([]string{"commit", "commit", "rollback", "commit and chain", "end"}[g.IntN(5)])
}

// sql returns a statement for Parse, with values for its parameters.
func (g *generator) sql() (sql string, values []string) {
	if g.IntN(3) > 0 {
		return phrase(g.Rand), nil
	}
	p := withParameters[g.IntN(len(withParameters))]
	for _, v := range p.values {
		values = append(values, placed(g.Rand, v))
	}
	return placed(g.Rand, p.sql), values
}

func parseOf(name, sql string, oids ...string) step {
	s := step{"Parse", []word{quoted(name), quoted(sql)}}
	for _, o := range oids {
		s.words = append(s.words, bare(o))
	}
	return s
}

func bindOf(portal, statement string, values []string) step {
	s := step{"Bind", []word{quoted(portal), quoted(statement)}}
	for _, v := range values {
		s.words = append(s.words, quoted(v))
	}
	return s
}

func describeOf(kind, name string) step { return step{"Describe", []word{bare(kind), quoted(name)}} }
func closeOf(kind, name string) step    { return step{"Close", []word{bare(kind), quoted(name)}} }
func executeOf(portal string, rows int) step {
	return step{"Execute", []word{quoted(portal), bare(strconv.Itoa(rows))}}
}

// oids returns types for parameters: mostly none, sometimes unknown or one that may not
// match.
func (g *generator) oids(n int) (oids []string) {
	if g.IntN(6) > 0 {
		return nil
	}
	for range g.IntN(n + 2) {
		oids = append(oids, []string{"0", "23", "25", "20", "705", "1700"}[g.IntN(6)])
	}
	return oids
}

// run is one statement as extended messages, as drivers send it.
func (g *generator) run() {
	sql, values := g.sql()
	g.add(parseOf("", sql, g.oids(len(values))...))
	if g.IntN(4) == 0 {
		g.add(describeOf("S", ""))
	}
	g.bind("", "", values)
	if g.IntN(3) > 0 {
		g.add(describeOf("P", ""))
	}
	g.add(executeOf("", []int{0, 0, 0, 0, 1, 2}[g.IntN(6)]))
}

// bind adds a Bind, occasionally with too few values, NULL or binary results.
func (g *generator) bind(portal, statement string, values []string) {
	switch g.IntN(25) {
	case 0:
		values = append(values, "1")
	case 1:
		values = values[:len(values)/2]
	}
	b := bindOf(portal, statement, values)
	if len(values) > 0 && g.IntN(12) == 0 {
		b.words[len(b.words)-1] = bare("null")
	}
	switch g.IntN(20) {
	case 0, 1, 2:
		b.words = append(b.words, bare("results=1"))
	case 3:
		b.words = append(b.words, bare("results=0,1,0"))
	case 4:
		b.words = append(b.words, bare("formats=1"))
	case 5:
		b.words = append(b.words, bare("results=7"))
	}
	g.add(b)
}

// pipeline is several statements, occasionally with a Query or a Flush, before a Sync;
// or several Syncs in a row.
func (g *generator) pipeline() {
	for range 2 + g.IntN(5) {
		g.run()
		switch g.IntN(12) {
		case 0:
			g.add(flushStep, waitAnswer)
		case 1:
			g.add(flushStep)
		case 2, 3, 4:
			g.add(syncStep)
		case 5:
			g.add(query(text(g.Rand)))
		}
	}
	g.sync()
}

// named uses statements that are prepared first and run later.
func (g *generator) named() {
	name := []string{"s1", "s1", "s2", "s3", strings.Repeat("long", 20), "é", strings.Repeat("n", 62), strings.Repeat("n", 63), strings.Repeat("n", 64), strings.Repeat("é", 32)}[g.IntN(10)]
	sql, values := g.sql()
	g.add(parseOf(name, sql, g.oids(len(values))...))
	if g.IntN(2) == 0 {
		g.add(describeOf("S", name))
	}
	g.maybeSync(5)
	for range g.IntN(3) {
		if g.IntN(5) == 0 {
			g.query(text(g.Rand))
		}
		portal := []string{"", "", "c1", "c2"}[g.IntN(4)]
		g.bind(portal, name, values)
		if g.IntN(3) == 0 {
			g.add(describeOf("P", portal))
		}
		g.add(executeOf(portal, g.IntN(3)))
		g.maybeSync(6)
	}
	if g.IntN(2) == 0 {
		g.add(closeOf("S", name))
	}
	g.maybeSync(9)
}
