package protocol_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/wire"
)

// backend is a model of a Postgres session: it reads the messages that a server reads
// and answers as Postgres does, as far as transactions, names, skipped messages and
// COPY go. Tables it has none: the text of a statement says whether it fails.
type backend struct {
	version    int
	epoch      int64 // the latest that was granted
	conforming bool
	reported   bool // standard_conforming_strings, as it was reported last

	in, out    []byte
	txn        txn
	skip       bool // up to a Sync
	statements map[string]*statement
	portals    map[string]*portal
	copying    *copying
	dead       bool
}

// portal is a portal or a cursor.
type portal struct {
	of          *statement // nil: empty
	args        []string
	hold, fresh bool
	rows        int // that were returned
	done        bool
}

// manyRows is how many rows the statement has that has many.
const manyRows = 3

// copying is a COPY whose data the server reads.
type copying struct {
	query bool
	rest  []statement // of the Query's text
	tags  int         // how many statements of it there are in all
}

func newBackend(version int, epoch int64) *backend {
	return &backend{
		version: version, epoch: epoch, conforming: true, reported: true,
		statements: map[string]*statement{}, portals: map[string]*portal{},
	}
}

// step processes one message, and reports whether there was one.
func (b *backend) step() bool {
	if b.dead || len(b.in) < wire.HeaderLen {
		return false
	}
	size := 1 + int(int32(binary.BigEndian.Uint32(b.in[1:])))
	if size < wire.HeaderLen || bytes.IndexByte([]byte("QPBDECSHXFdcf"), b.in[0]) < 0 {
		b.die("08P01", "invalid message")
		return true
	}
	if size > len(b.in) {
		return false
	}
	typ, body := b.in[0], bytes.Clone(b.in[wire.HeaderLen:size])
	b.in = b.in[size:]
	b.take(typ, body)
	return true
}

func (b *backend) take(typ byte, body []byte) {
	switch {
	case b.copying != nil:
		b.copyMessage(typ, body)
	case typ == 'X':
		b.dead = true
	case b.skip && typ != 'S':
	case typ == 'S':
		b.skip = false
		if len(body) > 0 {
			b.fails(typ, fault("08P01", "invalid message format"))
		} else if b.txn.phase == implicit {
			if err := b.end(true); err != nil {
				b.fails(typ, err)
				return
			}
		}
		if len(body) == 0 {
			b.ready()
		}
	case typ == 'Q':
		b.query(body)
	case typ == 'F':
		b.function()
	case typ == 'H':
		if len(body) > 0 {
			b.fails(typ, fault("08P01", "invalid message format"))
		}
	case typ == 'd', typ == 'c', typ == 'f': // of a COPY that has failed
	default:
		if err := b.extended(typ, body); err != nil {
			b.fails(typ, err)
		}
	}
}

func (b *backend) say(typ byte, body ...[]byte) {
	b.out = append(b.out, wiretest.Msg(typ, body...)...)
}

func (b *backend) complete(tag string) { b.say('C', []byte(tag+"\x00")) }

func (b *backend) ready() {
	if b.reported != b.conforming {
		b.reported = b.conforming
		b.out = wire.AppendParameterStatus(b.out, "standard_conforming_strings", map[bool]string{true: "on", false: "off"}[b.conforming])
	}
	status := map[phase]byte{idle: 'I', implicit: 'T', block: 'T', failed: 'E'}[b.txn.phase]
	b.out = wire.AppendReadyForQuery(b.out, status)
}

// fails answers a message of that type with an error.
func (b *backend) fails(typ byte, err *wire.ServerError) {
	b.out = wire.AppendServerError(b.out, *err)
	b.abort()
	b.copying = nil
	if bytes.IndexByte([]byte("QFS"), typ) >= 0 {
		b.ready()
		return
	}
	b.skip = true
}

func (b *backend) die(code, message string) {
	err := fault(code, message)
	err.Severity = "FATAL"
	b.out = wire.AppendServerError(b.out, *err)
	b.dead = true
}

// query runs a Query.
func (b *backend) query(body []byte) {
	text, rest, ok := wire.CString(body)
	if !ok || len(rest) > 0 {
		b.fails('Q', fault("08P01", "invalid message format"))
		return
	}
	delete(b.statements, "")
	delete(b.portals, "")
	b.start()
	all, ok := read(string(text), b.conforming)
	if !ok {
		b.fails('Q', fault("42601", "syntax error"))
		return
	}
	if len(all) == 0 {
		b.say('I')
	}
	b.runText(all, len(all))
}

// runText runs statements of a text of n.
func (b *backend) runText(all []statement, n int) {
	for i := range all {
		s := &all[i]
		b.start()
		tag, err := b.run(s, nil, place{among: n > 1})
		if err != nil {
			b.fails('Q', err)
			return
		}
		if s.verb == copiesIn {
			b.copying = &copying{query: true, rest: all[i+1:], tags: n}
			b.say('G', []byte{0, 0, 0})
			return
		}
		b.rows(s, tag)
		b.complete(tag)
		if n > 1 && i == len(all)-1 || s.isTransaction() {
			b.finish()
		}
	}
	if !b.pipelineBlock() {
		b.finish()
	}
	b.finished()
}

// finish ends an implicit transaction.
func (b *backend) finish() {
	if b.txn.phase == implicit && !b.txn.dooms {
		b.end(true)
	}
}

// finished ends a Query whose statements have been run.
func (b *backend) finished() {
	if b.txn.phase == implicit && b.txn.dooms && !b.pipelineBlock() {
		b.fails('Q', b.end(true))
		return
	}
	b.ready()
}

// rows says what a Query returns of s before its tag.
func (b *backend) rows(s *statement, tag string) {
	switch {
	case s.verb == copiesOut:
		b.say('H', []byte{0, 0, 0})
		b.say('d', []byte("1\n"))
		b.say('c')
	case s.returnsRows() && tag != "INSERT 0 1":
		b.say('T', []byte{0, 0})
		if tag == "SELECT 1" {
			b.say('D', []byte{0, 0})
		}
	}
}

// function runs a fast-path call.
func (b *backend) function() {
	b.start()
	if b.txn.phase == failed {
		b.fails('F', fault("25P02", "current transaction is aborted"))
		return
	}
	b.say('V', []byte{0xff, 0xff, 0xff, 0xff})
	if !b.pipelineBlock() {
		if b.finish(); b.txn.phase == implicit {
			b.fails('F', b.end(true))
			return
		}
	}
	b.ready()
}

// extended processes a Parse, Bind, Describe, Execute or Close.
func (b *backend) extended(typ byte, body []byte) *wire.ServerError {
	malformed := fault("08P01", "invalid message format")
	if typ == 'D' || typ == 'C' {
		if len(body) < 2 || body[0] != 'S' && body[0] != 'P' {
			return malformed
		}
		name, rest, ok := wire.CString(body[1:])
		if !ok || len(rest) > 0 {
			return malformed
		}
		if typ == 'D' {
			b.start()
			return b.describe(body[0], string(name))
		}
		if body[0] == 'S' {
			delete(b.statements, string(name))
		} else {
			delete(b.portals, string(name))
		}
		b.say('3')
		return nil
	}
	name, rest, ok := wire.CString(body)
	if !ok {
		return malformed
	}
	if typ == 'E' {
		if len(rest) != 4 {
			return malformed
		}
		return b.execute(string(name), int(binary.BigEndian.Uint32(rest)))
	}
	second, rest, ok := wire.CString(rest)
	if !ok || len(rest) < 2 {
		return malformed
	}
	b.start()
	if typ == 'P' {
		return b.parse(string(name), string(second))
	}
	return b.bind(string(name), string(second), rest)
}

func (b *backend) parse(name, text string) *wire.ServerError {
	if name == "" {
		delete(b.statements, "")
	}
	all, ok := read(text, b.conforming)
	if !ok || len(all) > 1 {
		return fault("42601", "syntax error")
	}
	s := &statement{}
	if len(all) == 1 {
		s = &all[0]
		switch {
		case b.txn.phase == failed && !s.endsBlock():
			return fault("25P02", "current transaction is aborted")
		case s.verb == failsEarly:
			return fault("42703", "column does not exist")
		}
	}
	if name != "" && b.statements[name] != nil {
		return fault("42P05", "prepared statement already exists")
	}
	b.statements[name] = s
	b.say('1')
	return nil
}

func (b *backend) bind(name, of string, rest []byte) *wire.ServerError {
	s := b.statements[of]
	switch {
	case s == nil:
		return missing(of)
	case b.txn.phase == failed && s.verb != syntaxError && !s.endsBlock():
		return fault("25P02", "current transaction is aborted")
	case name != "" && b.portals[name] != nil:
		return fault("42P03", "cursor already exists")
	}
	b.portals[name] = &portal{of: s, args: numbers(rest)}
	b.say('2')
	return nil
}

// numbers reads eight-byte parameters of a Bind.
func numbers(rest []byte) (args []string) {
	at := 2 + 2*int(binary.BigEndian.Uint16(rest))
	if len(rest) < at+2 {
		return nil
	}
	n := int(binary.BigEndian.Uint16(rest[at:]))
	for at += 2; n > 0 && len(rest) >= at+12; n, at = n-1, at+12 {
		args = append(args, strconv.FormatUint(binary.BigEndian.Uint64(rest[at+4:]), 10))
	}
	return args
}

func (b *backend) describe(what byte, name string) *wire.ServerError {
	var of *statement
	if what == 'S' {
		if of = b.statements[name]; of == nil {
			return missing(name)
		}
	} else {
		p := b.portals[name]
		if p == nil {
			return fault("34000", "portal does not exist")
		}
		of = p.of
	}
	if b.txn.phase == failed && of.returnsRows() {
		return fault("25P02", "current transaction is aborted")
	}
	if what == 'S' {
		b.say('t', []byte{0, 0})
	}
	if of.returnsRows() {
		b.say('T', []byte{0, 0})
	} else {
		b.say('n')
	}
	return nil
}

func (b *backend) execute(name string, most int) *wire.ServerError {
	p := b.portals[name]
	switch {
	case p == nil:
		return fault("34000", "portal does not exist")
	case p.of.verb == syntaxError:
		b.say('I')
		return nil
	}
	b.start()
	switch {
	case b.txn.phase == failed && !p.of.endsBlock():
		return fault("25P02", "current transaction is aborted")
	case p.done && !p.of.returnsRows():
		return fault("55000", "portal cannot be run")
	case p.done:
		b.complete("SELECT 0")
		return nil
	}
	tag, err := b.run(p.of, p.args, place{extended: true})
	if err != nil {
		return err
	}
	if p.of.verb == copiesIn {
		p.done = true
		b.copying = &copying{}
		b.say('G', []byte{0, 0, 0})
		return nil
	}
	if p.of.verb == selectsMany && most > 0 && p.rows+most < manyRows {
		p.rows += most
		b.say('s')
		b.txn.pipelined = true
		return nil
	}
	p.done = true
	if p.of.verb == copiesOut {
		b.rows(p.of, tag)
	} else if p.of.returnsRows() && tag == "SELECT 1" {
		b.say('D', []byte{0, 0})
	}
	if p.of.isTransaction() || p.of.verb == alone {
		if b.txn.phase == implicit {
			if err := b.end(true); err != nil {
				return err
			}
		}
	} else {
		b.txn.pipelined = true
	}
	b.complete(tag)
	return nil
}

// copyMessage processes a message while COPY data is read.
func (b *backend) copyMessage(typ byte, body []byte) {
	c := b.copying
	answers := byte('E')
	if c.query {
		answers = 'Q'
	}
	switch typ {
	case 'd':
		if bytes.HasPrefix(body, []byte("bad")) {
			err := fault("22P02", "invalid input syntax")
			err.Where = "COPY t, line 1, column id: \"bad\""
			b.fails(answers, err)
		}
	case 'H', 'S':
	case 'f':
		b.fails(answers, fault("57014", "COPY from stdin failed: "+string(bytes.TrimRight(body, "\x00"))))
	case 'c':
		b.copying = nil
		b.complete("COPY 1")
		if !c.query {
			b.txn.pipelined = true
			return
		}
		if c.tags > 1 && len(c.rest) == 0 {
			b.finish()
		}
		b.runText(slices.Clone(c.rest), c.tags)
	default:
		b.out = wire.AppendServerError(b.out, *fault("08P01", "unexpected message type 0x"+strconv.FormatInt(int64(typ), 16)+" during COPY from stdin"))
		b.die("08P01", "terminating connection because protocol synchronization was lost")
	}
}
