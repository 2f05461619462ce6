package protocol

import (
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// executed follows what a statement that was sent does to the session.
func (m *Machine) executed(s *statement) {
	switch {
	case !s.known, s.info.EndsTransaction, s.info.EndsSavepoint, s.info.Kind == sqltext.NonTransactional, s.info.Kind == sqltext.Discard:
		m.txn.Send(gate.MayEnd, false)
	case s.info.Resets && m.checks.claims:
		m.txn.Send(gate.ResetSettings, false)
	case s.info.UnsetsReadOnly:
		m.txn.Send(gate.UndoReadOnly, false)
	case s.info.Kind == sqltext.Begin:
		m.txn.Send(gate.BeginBlock, false)
	}
	if s.ends() && !s.info.Chain || s.discardsAll() {
		m.batch.committed()
	}
	m.batch.claimed = false
	m.followEnd(s, m.batch.id)
	m.forget(s)
}

// followEnd follows what a statement that was sent in a batch does to the client's
// transaction.
func (m *Machine) followEnd(s *statement, batch uint64) {
	switch {
	case s.ends():
		m.epochs.endsIn(batch, m.chain)
	case !s.known, s.info.EndsSavepoint:
		m.epochs.mayGoOn(batch, &m.chain)
	}
	m.chain.follow(s)
	if s.info.Resets || s.discardsAll() {
		m.checks.claimed = 0
	}
}

// ends reports whether s is a COMMIT or ROLLBACK: if it runs, its transaction is over.
func (s *statement) ends() bool {
	return s.known && (s.info.Kind == sqltext.Commit || s.info.Kind == sqltext.Rollback)
}

// discardsAll reports whether s is DISCARD ALL, which the server commits as soon as it was
// executed, without a Sync.
func (s *statement) discardsAll() bool {
	return s.known && s.info.Kind == sqltext.Discard && s.info.Name == "all"
}

// forget follows DISCARD and DEALLOCATE: the server's prepared statements may
// be gone, Fencepost's among them, and their names given to others.
func (m *Machine) forget(s *statement) {
	switch {
	case s.unknown() && !m.names.statements.mayFree():
		return // prepared by SQL, so it frees no names
	case s.unknown():
		m.forgetAll()
	case s.hides():
		m.mayForget(s)
	case (s.info.Prepares || s.info.Kind == sqltext.Deallocate) && opaque(bytesOf(s.info.Name)):
		m.forgetAll() // the server may have cut it to any other name
	case s.info.Prepares:
		m.names.statements.doubt(s.info.Name)
	case s.info.Kind == sqltext.Deallocate && s.info.Name != "":
		m.freed(s.info.Name)
	case frees(&s.info), s.info.Kind == sqltext.ByMessage && m.names.statements.mayFree():
		m.forgetAll()
	}
}

// mayForget follows a DO, a CALL, or a text that cannot be read. A function may
// hide a DEALLOCATE ALL: our statements are prepared again, which costs less
// than the rest of it. The client's are forgotten only if the text has a word in
// it that frees names.
func (m *Machine) mayForget(s *statement) {
	if s.info.MayFreeNames || s.guess.FreesNames {
		m.forgetAll()
	} else {
		m.checks.rename()
	}
}

func (m *Machine) forgetAll() {
	m.names.statements.forget()
	m.checks.rename()
}

// freed forgets a prepared statement that is gone from the server.
func (m *Machine) freed(name string) {
	m.names.statements.free(name)
	if m.checks.named(name) {
		m.checks.gone()
	}
}

// frees reports whether s frees names of prepared statements.
func frees(s *sqltext.Statement) bool {
	return s.Kind == sqltext.Deallocate || discardsAll(s)
}

// discardsAll reports whether s may be DISCARD ALL, which cannot run in a transaction.
func discardsAll(s *sqltext.Statement) bool {
	return s.Kind == sqltext.Discard && (s.Name == "" || s.Name == "all")
}

// chain follows what was set for the transaction in hand, and in those that were chained to
// it: the read-only mode that Fencepost gives to one of a worker that does not lead. COMMIT
// AND CHAIN and ROLLBACK AND CHAIN hand it on to the next transaction as if the client had
// chosen it. Once the worker leads, it must be undone there: a session that chains all its
// transactions could never write.
type chain struct {
	imported  bool // the transaction in hand may have imported a snapshot
	set       bool // Fencepost has made the transaction in hand read-only
	inherited bool // it has made one before it read-only, in the same chain
	chosen    bool // the client itself has chosen READ ONLY in the chain
	had       had  // what else of the transaction in hand was sent
	adds      had  // what the message in hand adds to that
}

// had is what a transaction has had, of what decides whether its client may choose resources, and
// whether the registry covers it.
type had uint8

const (
	hadBegin  had = 1 << iota // BEGIN, so that it is a block
	hadWork                   // something else than BEGIN and settings
	hadLock                   // LOCK TABLE, in front of all that may have taken a snapshot
	hadEnd                    // of a message: the rest of what it adds comes behind a COMMIT or ROLLBACK
	hadUnsure                 // of a message: the server may have run another statement than it seems
)

// readWriteSQL undoes the read-only mode. It takes no snapshot, and Postgres refuses it
// after the first query of a transaction.
const readWriteSQL = "SET transaction_read_only TO off"

// has notes what was sent.
func (c *chain) has(h had) { c.had, c.adds = c.had|h, c.adds|h }

// follow follows a statement of the client's that was sent.
func (c *chain) follow(s *statement) {
	if s.known && s.info.LocksTables && c.had&hadWork == 0 {
		c.has(hadLock)
	}
	switch {
	case !s.known:
		c.has(hadWork)
	case s.info.Kind == sqltext.Begin:
		c.has(hadBegin)
	case !s.empty && s.info.Kind != sqltext.Session && s.info.Kind != sqltext.SetFence && s.info.Kind != sqltext.ShowFence:
		c.has(hadWork)
	}
	switch {
	case s.ends() && s.info.Chain: // which fails outside a block
		c.imported, c.set, c.inherited, c.had, c.adds = false, false, c.set || c.inherited, c.had&hadBegin, hadEnd|hadBegin
	case s.ends():
		*c = chain{adds: hadEnd}
	case s.importsSnapshot():
		c.imported = true
	case s.known && s.info.ChoosesReadOnly:
		c.chosen = true
	}
}

// followBehind follows a statement of the client's that was sent behind g.
func (c *chain) followBehind(g injectedCheck, s *statement) {
	if g != noCheck {
		c.has(hadWork) // it takes a snapshot
	}
	c.follow(s)
}

// importsSnapshot reports whether s may be SET TRANSACTION SNAPSHOT, or contain it. That
// snapshot may be older than the worker's epoch.
func (s *statement) importsSnapshot() bool {
	return s.known && s.info.ImportsSnapshot || !s.known && s.guess.ImportsSnapshot
}

// undoes reports whether a read-only mode that was handed on can be undone in front of a
// leader's check: in each transaction of the chain, because one that fails restores the
// mode, but not where Fencepost has set the mode again.
func (c *chain) undoes() bool { return c.inherited && !c.chosen && !c.set }
