package differential

// noise is arbitrary messages that need not fit together.
func (g *generator) noise() {
	names := []string{"", "", "s1", "s2", "s3", "c1", "c2", "nope"}
	name := func() string { return names[g.IntN(len(names))] }
	for range 1 + g.IntN(3) {
		switch g.IntN(10) {
		case 0:
			sql, _ := g.sql()
			g.add(parseOf(name(), sql))
		case 1, 2:
			g.bind(name(), name(), nil)
		case 3:
			g.add(describeOf("S", name()))
		case 4:
			g.add(describeOf("P", name()))
		case 5, 6:
			g.add(executeOf(name(), g.IntN(3)-1))
		case 7:
			g.add(closeOf("S", name()))
		case 8:
			g.add(closeOf("P", name()))
		case 9:
			g.add([]step{flushStep, syncStep, {name: "CopyDone"}, {"CopyData", []word{quoted("x")}}, {"CopyFail", []word{quoted("why")}}}[g.IntN(5)])
		}
	}
	g.maybeSync(7)
}

// portal reads from a portal in several steps.
func (g *generator) portal() {
	inBlock := g.IntN(2) == 0
	if inBlock {
		g.query("begin")
	}
	portal := []string{"", "c1", "c2"}[g.IntN(3)]
	sql := placed(g.Rand, []string{"select generate_series(1, 5)", "select * from t order by id", "select many(5)", "insert into t values ({i}, 'r') returning *", "fetch 3 from c2", "values (1), (2), (3)", "update t set v = 'x' where id < 3 returning id"}[g.IntN(7)])
	g.add(parseOf("", sql), bindOf(portal, "", nil))
	for range 1 + g.IntN(4) {
		g.add(executeOf(portal, 1+g.IntN(3)))
		switch g.IntN(8) {
		case 0, 1:
			g.sync()
		case 2:
			g.add(flushStep, waitAnswer)
		case 3:
			g.run()
		case 4:
			g.query(text(g.Rand))
		}
	}
	if g.IntN(3) == 0 {
		g.add(closeOf("P", portal))
	}
	g.sync()
	if inBlock {
		g.query([]string{"commit", "rollback"}[g.IntN(2)])
	}
}

// copyIn is COPY FROM STDIN in every position.
func (g *generator) copyIn() {
	sql := []string{"copy t from stdin", "copy t from stdin", "copy t (id) from stdin", "copy wide (a, b) from stdin (format csv)", "copy nope from stdin", "copy log (v) from stdin", "copy trg from stdin", "copy t from stdin where id < 20", "copy t from stdin (format binary)"}[g.IntN(9)]
	extended := g.IntN(2) == 0
	if extended {
		g.add(parseOf("", sql), bindOf("", "", nil), executeOf("", 0))
		switch g.IntN(6) {
		case 0, 1:
			g.add(syncStep)
		case 2:
			g.add(flushStep, waitAnswer)
		case 3:
			g.add(flushStep)
		}
	} else {
		switch g.IntN(6) {
		case 0:
			sql = phrase(g.Rand) + "; " + sql
		case 1:
			sql += "; " + phrase(g.Rand)
		}
		g.add(query(sql))
		g.ready()
	}
	data := g.IntN(4)
	for range data {
		row := placed(g.Rand, []string{"{i}\tcopied\n", "{i}\tcopied\n", "{i},csv\n", "{i}\n", "bad\n", "{i}\t", "\\.\n", "{i}\té\n", "\n"}[g.IntN(9)])
		g.add(step{"CopyData", []word{quoted(row)}})
		switch g.IntN(12) {
		case 0:
			if !extended {
				g.add(syncStep)
			}
		case 1:
			g.add(flushStep)
		}
	}
	how := g.IntN(12)
	if extended && data > 0 && how >= 2 {
		how = 5 // a Sync after failed COPY data may be part of the data: see Machine.maybeNext
	}
	switch how {
	case 0, 1:
		g.add(step{"CopyFail", []word{quoted("no more")}})
	case 2:
		g.add(query("select 'inside'"))
	case 3:
		g.run()
	case 4: // nothing: what follows is part of the COPY
	default:
		g.add(step{name: "CopyDone"})
	}
	if extended || g.IntN(3) == 0 {
		g.sync()
	}
}

// functionCall is a fast-path call.
func (g *generator) functionCall() {
	calls := [][]word{
		{bare("177"), bare("formats=0"), bare("results=0"), quoted("2"), quoted("3")}, // int4pl
		{bare("177"), bare("formats=1"), bare("results=1"), quoted("\x00\x00\x00\x02"), quoted("\x00\x00\x00\x03")},
		{bare("177"), bare("formats=1"), quoted("\x00\x00\x00\x02")},
		{bare("715"), quoted("4{i}")},                   // lo_create
		{bare("964"), quoted("4{i}")},                   // lo_unlink
		{bare("952"), quoted("4{i}"), quoted("131072")}, // lo_open
		{bare("955"), quoted("0"), quoted("data")},      // lowrite
		{bare("954"), quoted("0"), quoted("3")},         // loread
		{bare("953"), quoted("0")},                      // lo_close
		{bare("1574"), quoted("s")},                     // nextval
		{bare("3"), quoted("x")},
		{bare("999999")},
		{bare("154"), quoted("0"), bare("null")}, // int4div? a strict one with NULL
	}
	words := calls[g.IntN(len(calls))]
	s := step{name: "FunctionCall"}
	for _, w := range words {
		w.text = placed(g.Rand, w.text)
		s.words = append(s.words, w)
	}
	if g.IntN(2) == 0 {
		g.query("begin")
	}
	g.add(s)
	g.ready()
}

// malformed is messages that no driver sends.
func (g *generator) malformed() {
	all := []step{
		{"Message", []word{bare("B"), quoted("x")}}, {"Message", []word{bare("P"), quoted("x")}}, {"Message", []word{bare("D"), quoted("Zx\x00")}},
		{"Message", []word{bare("D"), quoted("")}}, {"Message", []word{bare("C"), quoted("Zx\x00")}}, {"Message", []word{bare("E"), quoted("x")}},
		{"Message", []word{bare("Q"), quoted("select 1")}}, {"Message", []word{bare("Q"), quoted("select 1\x00select 2\x00")}}, {"Message", []word{bare("Q"), quoted("")}},
		{"Message", []word{bare("y"), quoted("x")}}, {"Message", []word{bare("p"), quoted("x\x00")}}, {"Message", []word{bare("F"), quoted("x")}}, {"Message", []word{bare("F"), quoted("")}},
		{"Message", []word{bare("S"), quoted("x")}}, {"Message", []word{bare("H"), quoted("x")}}, {"Message", []word{bare("X"), quoted("x")}}, {"Message", []word{bare("c"), quoted("x")}},
		{"Message", []word{bare("B"), quoted("\x00\x00\x00\x00\x00\x05\x00\x00")}}, {"Message", []word{bare("B"), quoted("\x00\x00\x00\x00\x00\x01\xff\xff\xff\xf0\x00\x00")}},
		{"Message", []word{bare("P"), quoted("\x00select $1\x00\x00\x01\x7f\xff\x75\x30")}}, {"Message", []word{bare("P"), quoted("s1\x00select 1\x00\x00\x05")}},
		{"Bytes", []word{quoted("Q\x00\x00\x00\x03")}}, {"Bytes", []word{quoted("S\xff\xff\xff\xff")}}, {"Bytes", []word{quoted("S\x00\x10\x00\x00")}}, {"Bytes", []word{quoted("\x00")}},
		{"Bytes", []word{quoted("Q\x7f\xff\xff\xff")}}, {"Bytes", []word{quoted("E\x00\x00\x00\x04")}}, {"Message", []word{bare("d"), quoted("late")}}, {"Message", []word{bare("f"), quoted("late\x00")}},
	}
	g.add(all[g.IntN(len(all))])
	g.maybeSync(5)
}

// keptBySQL mixes SQL's PREPARE with the protocol's own.
func (g *generator) keptBySQL() {
	phrases := families[6].phrases
	for range 2 + g.IntN(4) {
		sql := placed(g.Rand, phrases[g.IntN(len(phrases))])
		switch g.IntN(4) {
		case 0:
			g.add(parseOf("", sql), bindOf("", "", nil), executeOf("", 0))
			g.maybeSync(8)
		case 1:
			name := placed(g.Rand, "{s}")
			g.add(bindOf("", name, nil), executeOf("", 0))
			g.maybeSync(8)
		default:
			g.query(sql)
		}
	}
	g.query(placed(g.Rand, "insert into t values ({i}, 'after')"))
}

// cursor mixes SQL cursors with portals.
func (g *generator) cursor() {
	phrases := families[7].phrases
	g.query("begin")
	for range 2 + g.IntN(4) {
		sql := placed(g.Rand, phrases[g.IntN(len(phrases))])
		switch g.IntN(4) {
		case 0:
			g.add(parseOf("", sql), bindOf("", "", nil), describeOf("P", ""), executeOf("", 0))
			g.maybeSync(7)
		case 1:
			g.add(executeOf(placed(g.Rand, "{c}"), 1+g.IntN(2)))
			g.maybeSync(7)
		default:
			g.query(sql)
		}
	}
	g.sync()
	g.query([]string{"commit", "rollback"}[g.IntN(2)])
}

// doubtful is texts whose meaning depends on a setting, after an unanswered change of
// that setting.
func (g *generator) doubtful() {
	phrases := families[5].phrases
	for range 2 + g.IntN(3) {
		sql := placed(g.Rand, phrases[g.IntN(len(phrases))])
		if g.IntN(3) == 0 {
			g.add(parseOf("", sql), bindOf("", "", nil), executeOf("", 0))
			g.maybeSync(6)
		} else {
			g.query(sql)
		}
	}
	g.sync()
	g.query("set standard_conforming_strings = on; set client_encoding = 'UTF8'")
}

// forget makes a function drop all prepared statements, which is invisible on the wire. A wait follows.
func (g *generator) forget() {
	if g.IntN(2) == 0 {
		g.add(parseOf("s1", "select forget()"), bindOf("", "s1", nil), executeOf("", 0), syncStep)
	} else {
		g.add(query("select forget()"))
	}
	g.add(waitReady)
}

// timeout is a statement that exceeds its timeout.
func (g *generator) timeout() {
	g.sync()
	g.query("rollback")
	g.query("set statement_timeout = '500ms'")
	if g.IntN(2) == 0 {
		g.query("select pg_sleep(3)")
	} else {
		g.add(parseOf("", "select pg_sleep(3)"), bindOf("", "", nil), executeOf("", 0))
		g.sync()
	}
	g.query("reset statement_timeout")
}

// largeObject writes a large object by SQL and by fast-path calls.
func (g *generator) largeObject() {
	g.query("begin")
	g.query("select lo_create(4100)")
	open := step{"FunctionCall", []word{bare("952"), quoted("4100"), quoted("393216")}}
	g.add(open)
	g.ready()
	g.add(step{"FunctionCall", []word{bare("955"), bare("formats=0"), quoted("0"), quoted("some data")}})
	g.ready()
	if g.IntN(2) == 0 {
		g.query(text(g.Rand))
	}
	g.add(step{"FunctionCall", []word{bare("953"), quoted("0")}})
	g.query([]string{"commit", "rollback"}[g.IntN(2)])
}
