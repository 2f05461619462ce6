package model

import (
	"slices"
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/proxy/wire"
)

// phase is where the model server's session stands.
type phase uint8

const (
	idle     phase = iota
	implicit       // in a transaction that ends with the Query or the batch
	block
	failed
)

// txn is the model server's transaction.
type txn struct {
	phase     phase
	pipelined bool // an Execute has completed in it, and no Sync has come since
	readOnly  bool
	queried   bool // something took a snapshot
	dooms     bool // a deferred constraint will fail
	locked    bool // the check has passed: a grant waits for the end
	saves     []savepoint
	before    bool // standard_conforming_strings, before the transaction
}

type savepoint struct {
	name                    string
	readOnly, conforms, dom bool
}

// fault is an error of the model server.
func fault(code, message string) *wire.ServerError {
	return &wire.ServerError{Severity: "ERROR", Code: code, Message: message}
}

// start begins an implicit transaction, unless there is one.
func (b *backend) start() {
	if b.txn.phase == idle {
		b.txn = txn{phase: implicit, before: b.conforming}
	}
}

// end commits or rolls back, and returns the error of a deferred constraint.
func (b *backend) end(commit bool) (err *wire.ServerError) {
	if commit && b.txn.dooms {
		commit, err = false, fault("23505", "duplicate key")
	}
	if !commit && b.txn.phase != idle {
		b.conforming = b.txn.before
	}
	b.txn = txn{}
	for name, p := range b.portals {
		if !p.hold || !commit && p.fresh {
			delete(b.portals, name)
			continue
		}
		p.fresh = false
	}
	return err
}

// abort is what an error does to the transaction.
func (b *backend) abort() {
	if b.txn.phase == block || b.txn.phase == failed {
		b.txn.phase = failed
		return
	}
	b.end(false)
}

// place is where a statement is run.
type place struct {
	extended bool
	among    bool // one of several in a text
}

// inBlock reports what IsTransactionBlock does.
func (b *backend) inBlock(p place) bool {
	return b.txn.phase == block || p.among || b.pipelineBlock()
}

// pipelineBlock reports whether the statement stands in a block of the pipeline's own.
func (b *backend) pipelineBlock() bool { return b.version >= 18 && b.txn.pipelined }

// run runs a statement, and returns its tag. The transaction has been started.
func (b *backend) run(s *statement, args []string, p place) (tag string, err *wire.ServerError) {
	if b.txn.phase == failed && !s.endsBlock() {
		return "", fault("25P02", "current transaction is aborted, commands ignored until end of transaction block")
	}
	if s.isTransaction() {
		return b.runTransaction(s, p)
	}
	switch s.verb {
	case setsStrings:
		b.conforming = s.arg != "off"
		return "SET", nil
	case resetsReadOnly:
		if b.version >= 16 {
			return "", fault("0A000", "parameter cannot be reset")
		}
		b.txn.readOnly = false
		return "RESET", nil
	case sets:
		return "SET", nil
	case shows:
		return "SHOW", nil
	case listens:
		return "LISTEN", nil
	case discards:
		if b.inBlock(p) || b.txn.pipelined {
			return "", fault("25001", "DISCARD ALL cannot run inside a transaction block")
		}
		clear(b.statements)
		clear(b.portals)
		return "DISCARD ALL", nil
	case deallocates:
		return b.deallocate(s.arg)
	case locks:
		if strings.HasPrefix(strings.ToLower(s.text), "lock") && !b.inBlock(p) {
			return "", fault("25P01", "LOCK TABLE can only be used in transaction blocks")
		}
		return "LOCK TABLE", nil
	case endsPrepared:
		if b.inBlock(p) || b.txn.pipelined {
			return "", fault("25001", "COMMIT PREPARED cannot run inside a transaction block")
		}
		return "", fault("42704", "prepared transaction does not exist")
	case alone:
		if b.inBlock(p) || b.txn.pipelined {
			return "", fault("25001", "VACUUM cannot run inside a transaction block")
		}
		err := b.end(true)
		b.start()
		return "VACUUM", err
	}
	b.txn.queried = true
	return b.runQuery(s, args, p)
}

// runQuery runs a statement that takes a snapshot.
func (b *backend) runQuery(s *statement, args []string, p place) (tag string, err *wire.ServerError) {
	switch s.verb {
	case theCheck:
		return b.check(s, args)
	case theVerdict:
		if tag, err = b.check(s, args); err != nil && err.Code == "ZF001" {
			b.txn.readOnly = true
			return "SELECT 1", nil
		}
		return tag, err
	case runsNothing:
		if b.txn.readOnly {
			return "SELECT 0", nil
		}
	case theRefusal:
		return "", fault("ZF002", "this worker does not lead")
	case readOnlyMode:
		b.txn.readOnly = true
	case failsEarly:
		return "", fault("42703", "column does not exist")
	case failsLate:
		return "", fault("22012", "division by zero")
	case prepares:
		return b.prepare(s)
	case executes:
		return b.executeSQL(s, p)
	case commitsInside:
		return b.runInside(s, p)
	case declares:
		if !s.also && !b.inBlock(p) {
			return "", fault("25P01", "DECLARE CURSOR can only be used in transaction blocks")
		}
		if b.portals[s.arg] != nil {
			return "", fault("42P03", "cursor already exists")
		}
		b.portals[s.arg] = &portal{of: &statement{verb: selects}, hold: s.also, fresh: true}
		return "DECLARE CURSOR", nil
	case fetches, closesCursor:
		if b.portals[s.arg] == nil {
			return "", fault("34000", "cursor does not exist")
		}
		if s.verb == closesCursor {
			delete(b.portals, s.arg)
			return "CLOSE CURSOR", nil
		}
		return "FETCH 0", nil
	case deallocatesHidden:
		clear(b.statements)
	case failsAtEnd, writes, copiesIn:
		if b.txn.readOnly {
			return "", fault("25006", "cannot execute in a read-only transaction")
		}
		b.txn.dooms = b.txn.dooms || s.verb == failsAtEnd
		return "INSERT 0 1", nil
	case copiesOut:
		return "COPY 1", nil
	}
	return "SELECT 1", nil
}

// runTransaction runs a statement that controls the transaction.
func (b *backend) runTransaction(s *statement, p place) (tag string, err *wire.ServerError) {
	t := &b.txn
	switch s.verb {
	case begins:
		t.phase = block
		return "BEGIN", nil
	case commits, rollsBack:
		tag = map[bool]string{true: "COMMIT", false: "ROLLBACK"}[s.verb == commits && t.phase != failed]
		if s.also && t.phase < block {
			return "", fault("25P01", "AND CHAIN can only be used in transaction blocks")
		}
		if err := b.end(tag == "COMMIT"); err != nil {
			return "", err
		}
		if b.start(); s.also {
			b.txn.phase = block
		}
		return tag, nil
	case twoPhases:
		if t.phase == block {
			return "", fault("55000", "prepared transactions are disabled")
		}
		b.end(t.phase == implicit)
		b.start()
		return "ROLLBACK", nil
	}
	at := -1
	for i := range t.saves {
		if t.saves[i].name == s.arg {
			at = i
		}
	}
	switch {
	case t.phase < block:
		return "", fault("25P01", "SAVEPOINT can only be used in transaction blocks")
	case s.verb == savepoints:
		t.saves = append(t.saves, savepoint{s.arg, t.readOnly, b.conforming, t.dooms})
		return "SAVEPOINT", nil
	case at < 0:
		return "", fault("3B001", "savepoint does not exist")
	case s.verb == releases:
		t.saves = t.saves[:at]
		return "RELEASE", nil
	}
	was := t.saves[at]
	t.saves = t.saves[:at+1]
	t.phase, t.readOnly, t.dooms, b.conforming = block, was.readOnly, was.dom, was.conforms
	return "ROLLBACK", nil
}

// runInside runs a DO or CALL, which commits if its text says so.
func (b *backend) runInside(s *statement, p place) (tag string, err *wire.ServerError) {
	if !strings.Contains(s.text, "commit") {
		return "DO", nil
	}
	if b.inBlock(p) {
		return "", fault("2D000", "invalid transaction termination")
	}
	pipelined := b.txn.pipelined
	err = b.end(true)
	b.start()
	b.txn.pipelined, b.txn.queried = pipelined, true
	return "DO", err
}

// check answers a check. The grant of a later epoch has ended whoever was checked
// before it.
func (b *backend) check(s *statement, args []string) (tag string, err *wire.ServerError) {
	number := func(text string) int64 {
		if i := slices.Index([]string{"$1", "$2"}, text); i >= 0 && i < len(args) {
			text = args[i]
		}
		n, _ := strconv.ParseInt(text, 10, 64)
		return n
	}
	told, held := number(s.num.told), number(s.num.held)
	switch {
	case held != 0 && held < b.epoch, told != 0 && told < b.epoch:
		return "", fault("ZF001", "another worker was granted an epoch")
	case held == 0:
		return "", fault("ZF002", "this worker does not lead")
	case told != held:
		return "", fault("ZF003", "the connection was announced another epoch")
	}
	b.txn.locked = true
	return "SELECT 0", nil
}

func (b *backend) deallocate(name string) (tag string, err *wire.ServerError) {
	if name == "all" {
		clear(b.statements)
		return "DEALLOCATE ALL", nil
	}
	if b.statements[name] == nil {
		return "", missing(name)
	}
	delete(b.statements, name)
	return "DEALLOCATE", nil
}

func missing(name string) *wire.ServerError {
	return fault("26000", `prepared statement "`+name+`" does not exist`)
}

// prepare runs a PREPARE.
func (b *backend) prepare(s *statement) (tag string, err *wire.ServerError) {
	if b.statements[s.arg] != nil {
		return "", fault("42P05", "prepared statement already exists")
	}
	_, text, _ := strings.Cut(s.text, " as ")
	of := statementOf(text)
	if of.verb == failsEarly {
		return "", fault("42703", "column does not exist")
	}
	b.statements[s.arg] = &of
	return "PREPARE", nil
}

// executeSQL runs an EXECUTE.
func (b *backend) executeSQL(s *statement, p place) (tag string, err *wire.ServerError) {
	of := b.statements[s.arg]
	switch {
	case of == nil:
		return "", missing(s.arg)
	case of.verb == syntaxError: // empty
		return "SELECT 0", nil
	case of.verb == copiesIn, of.isTransaction():
		return "", fault("0A000", "the model server knows no EXECUTE of this")
	}
	return b.run(of, strings.Split(s.args, ","), p)
}
