package safety

import (
	"bytes"
	"regexp"
	"strings"

	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// The kinds of texts: as they are; longer than what the grammar is given, and
// than what the proxy looks at; nested deeper than the grammar is given; with a
// backslash while standard_conforming_strings is off; with a byte outside ASCII
// in SJIS.
const (
	plainText  = "plain"
	padded     = "padded"
	huge       = "huge"
	deep       = "deep"
	oldStrings = "old strings"
	sjis       = "SJIS"
)

var textKinds = []string{plainText, padded, huge, deep, oldStrings, sjis}

const (
	simple           = "simple"
	extended         = "extended"
	preparedBefore   = "prepared before"
	flushed          = "flushed"
	halfQuery        = "half a query"
	halfBatch        = "half a batch"
	begunSimple      = "begin flushed, then simple"
	begunExtended    = "begin flushed, then extended"
	released         = "savepoint released"
	begunReleased    = "begin flushed, savepoint released"
	behindError      = "after an error"
	behindErrorQuery = "after an error, then simple"
	behindBlock      = "after a failed block"
)

// transports are the ways in which the messages are sent.
var transports = []string{
	simple, extended, preparedBefore, flushed, halfQuery, halfBatch, begunSimple, begunExtended, released, begunReleased,
	behindError, behindErrorQuery, behindBlock,
}

// callTransports are those in which a fast path call can stand for a Query.
var callTransports = []string{simple, halfQuery, begunSimple, released, begunReleased, behindErrorQuery, behindBlock}

// sending is what is sent, and what is awaited before the next.
type sending struct {
	send  []byte
	ready int    // so many ReadyForQuery
	upTo  string // or, behind a Flush, a message of one of these types, or an error
	data  bool   // it is sent only while the server awaits COPY data
}

func ask1(send []byte) sending { return sending{send: send, ready: 1} }

// cellScript is how a cell is run. What stands in setup and early changes
// nothing; the standing changes behind it. While late has been run and end
// has not, a transaction may be open.
type cellScript struct {
	setup, early, late, end []sending
}

// piece is one statement of a way to write, in messages.
type piece struct {
	sql  string
	data []byte
	call []byte
}

func (p piece) simple() []byte {
	if p.call != nil {
		return p.call
	}
	return Cat(Q(p.sql), p.data)
}

func (p piece) extended() []byte { return Cat(Run(p.sql), p.data) }

// flushedSteps send each message by itself, with a Flush behind it.
func (p piece) flushedSteps() []sending {
	all := []sending{
		{send: Cat(Parse("", p.sql), Flush()), upTo: "1"},
		{send: Cat(Bind("", ""), Flush()), upTo: "2"},
		{send: Cat(Exec("", 0), Flush()), upTo: "CIsG"},
	}
	if p.data != nil {
		all = append(all, sending{send: Cat(p.data, Flush()), upTo: "C", data: true})
	}
	return all
}

// script makes the messages of the cell.
func (c cell) script(fill func(string) string) cellScript {
	pieces := c.path.pieces(c.text, fill)
	s := transportScripts[c.transport](c, pieces)
	if c.who == lapsed { // a transaction that began before the lapse goes on
		var early []sending
		for i := len(s.early) - 1; i >= 0; i-- {
			if m := s.early[i]; bytes.Equal(m.send, beginFlushed.send) || bytes.Equal(m.send, Q("begin")) {
				s.late = append([]sending{m}, s.late...)
			} else {
				early = append([]sending{m}, early...)
			}
		}
		s.early = early
	}
	switch c.text {
	case oldStrings:
		s.setup = append(s.setup, ask1(Q("set standard_conforming_strings = off; set escape_string_warning = off")))
	case sjis:
		s.setup = append(s.setup, ask1(Q("set client_encoding = 'SJIS'")))
	}
	return s
}

func (p writePath) pieces(kind string, fill func(string) string) (all []piece) {
	if p.call != nil {
		return []piece{{call: p.call}}
	}
	for i, sql := range p.sql {
		x := piece{sql: inKind(kind, fill(sql))}
		if i == len(p.sql)-1 && p.data != "" {
			x.data = Cat(wiretest.CopyData(p.data), wiretest.CopyDone())
		}
		all = append(all, x)
	}
	return all
}

var (
	padding     = " /* " + strings.Repeat("x", 256<<10) + " */"
	hugePadding = " /* " + strings.Repeat("x", 1<<20) + " */"
	// deeper stands for what is nested deep where no bracket can be put: the
	// grammar is not given comments in comments either.
	deeper   = " " + strings.Repeat("/*", 2100) + strings.Repeat("*/", 2100)
	operand  = regexp.MustCompile(`(= |\(|, )(\d+|'w')(\)|,| |$)`)
	operands = regexp.MustCompile(`^(insert|update|delete|select|values|with|declare|merge|execute|call|explain)\b`)
)

// inKind writes a statement as a text of that kind, which means the same.
func inKind(kind, sql string) string {
	switch kind {
	case padded:
		return sql + padding
	case huge:
		return sql + hugePadding
	case oldStrings:
		return sql + ` /* \ */`
	case sjis:
		return sql + " /* \x83\x5c */"
	case deep:
		at := operand.FindStringSubmatchIndex(sql)
		if at == nil || !operands.MatchString(sql) {
			return sql + deeper
		}
		return sql[:at[4]] + strings.Repeat("(", 2100) + sql[at[4]:at[5]] + strings.Repeat(")", 2100) + sql[at[5]:]
	default:
		return sql
	}
}

var transportScripts = map[string]func(c cell, pieces []piece) cellScript{
	simple: func(c cell, pieces []piece) cellScript {
		return c.path.inBlock(cellScript{late: eachOf(pieces, piece.simple)})
	},
	extended: func(c cell, pieces []piece) cellScript {
		return c.path.inBlock(cellScript{late: eachOf(pieces, synced)})
	},
	preparedBefore: preparedScript,
	flushed: func(c cell, pieces []piece) cellScript {
		s := cellScript{late: flushedOf(pieces), end: []sending{ask1(Sync())}}
		if c.path.block {
			s.early, s.end = []sending{beginFlushed}, []sending{ask1(Batch(Run("commit")))}
		}
		return s
	},
	halfQuery: func(c cell, pieces []piece) cellScript {
		s, all := cellScript{}, eachOf(pieces, piece.simple)
		return c.path.inBlock(cutFirst(s, all, 5+(len(pieces[0].sql)+len(pieces[0].call))/2))
	},
	halfBatch: func(c cell, pieces []piece) cellScript {
		at := len(Parse("", pieces[0].sql)) + 7 // in the middle of Bind
		if c.who == lapsed {
			at /= 2 // what was parsed while it led is covered, and may go on
		}
		return c.path.inBlock(cutFirst(cellScript{}, eachOf(pieces, synced), at))
	},
	begunSimple: func(_ cell, pieces []piece) cellScript {
		return cellScript{early: []sending{beginFlushed}, late: eachOf(pieces, piece.simple), end: []sending{ask1(Q("commit"))}}
	},
	begunExtended: func(_ cell, pieces []piece) cellScript {
		return cellScript{early: []sending{beginFlushed}, late: flushedOf(pieces), end: []sending{ask1(Batch(Run("commit")))}}
	},
	released: func(_ cell, pieces []piece) cellScript {
		return cellScript{early: []sending{ask1(Q("begin"))}, late: append(releasing(), eachOf(pieces, piece.simple)...), end: []sending{ask1(Q("commit"))}}
	},
	begunReleased: func(_ cell, pieces []piece) cellScript {
		return cellScript{early: []sending{beginFlushed}, late: append(releasing(), eachOf(pieces, piece.simple)...), end: []sending{ask1(Q("commit"))}}
	},
	behindError: func(c cell, pieces []piece) cellScript {
		return cellScript{late: []sending{{send: Cat(Run("select 1/0"), Run("select 2"), Sync(), c.path.batch(pieces), Sync()), ready: 2}}}
	},
	behindErrorQuery: func(c cell, pieces []piece) cellScript {
		all, n := c.path.queue(pieces)
		return cellScript{late: []sending{{send: Cat(Run("select 1/0"), Q("select 3"), Sync(), all), ready: 1 + n}}}
	},
	behindBlock: func(c cell, pieces []piece) cellScript {
		all, n := c.path.queue(pieces)
		return cellScript{late: []sending{{send: Cat(Q("begin"), Q("select 1/0"), Q("rollback"), all), ready: 3 + n}}}
	},
}

var beginFlushed = sending{send: Cat(Run("begin"), Flush()), upTo: "C"}

func synced(p piece) []byte { return Batch(p.extended()) }

func eachOf(pieces []piece, form func(piece) []byte) (all []sending) {
	for _, p := range pieces {
		all = append(all, ask1(form(p)))
	}
	return all
}

func flushedOf(pieces []piece) (all []sending) {
	for _, p := range pieces {
		all = append(all, p.flushedSteps()...)
	}
	return all
}

func releasing() []sending {
	return []sending{ask1(Q("savepoint sp")), ask1(Q("select 1")), ask1(Q("release sp"))}
}

// inBlock puts a block around a script of who needs one.
func (p writePath) inBlock(s cellScript) cellScript {
	if p.block {
		s.early = append([]sending{ask1(Q("begin"))}, s.early...)
		s.end = append(s.end, ask1(Q("commit")))
	}
	return s
}

// preparedScript parses all that it executes before the standing changes, and
// begins a block after that: a transaction that was checked may go on.
func preparedScript(c cell, pieces []piece) cellScript {
	s := cellScript{}
	for i, p := range pieces {
		name := "prepared" + string(rune('a'+i))
		s.early = append(s.early, ask1(Batch(Parse(name, p.sql))))
		s.late = append(s.late, ask1(Batch(Bind("", name), Exec("", 0), p.data)))
	}
	if c.path.block {
		s.late = append([]sending{ask1(Q("begin"))}, s.late...)
		s.end = []sending{ask1(Q("commit"))}
	}
	return s
}

// cutFirst sends the first at bytes early, and the rest late.
func cutFirst(s cellScript, all []sending, at int) cellScript {
	s.early = append(s.early, sending{send: all[0].send[:at]})
	all[0].send = all[0].send[at:]
	s.late = all
	return s
}

// batch is all of a way to write in extended messages without a Sync.
func (p writePath) batch(pieces []piece) []byte {
	var all [][]byte
	for _, x := range pieces {
		all = append(all, x.extended())
	}
	if p.block {
		return Cat(Run("begin"), Cat(all...), Run("commit"))
	}
	return Cat(all...)
}

// queue is all of a way to write in simple messages, and how many there are.
func (p writePath) queue(pieces []piece) (all []byte, n int) {
	var parts [][]byte
	for _, x := range pieces {
		parts = append(parts, x.simple())
	}
	if p.block {
		parts = append(append([][]byte{Q("begin")}, parts...), Q("commit"))
	}
	return Cat(parts...), len(parts)
}
