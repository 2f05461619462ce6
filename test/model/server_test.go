package model

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
