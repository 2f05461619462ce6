package model

import (
	"encoding/binary"
	"strconv"

	"github.com/fencepost/fencepost/proxy/wire"
)

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
