package protocol

// chain follows the read-only mode that Fencepost gives to a transaction of a worker that
// does not lead. COMMIT AND CHAIN and ROLLBACK AND CHAIN hand it on to the next transaction
// as if the client had chosen it. Once the worker leads, it must be undone there: a session
// that chains all its transactions could never write.
type chain struct {
	set       bool // Fencepost has made the transaction in hand read-only
	inherited bool // it has made one before it read-only, in the same chain
	chosen    bool // the client has chosen the access mode in the chain itself
}

// readWriteSQL undoes the read-only mode. It takes no snapshot, and Postgres refuses it
// after the first query of a transaction.
const readWriteSQL = "SET transaction_read_only TO off"

// follow follows a statement of the client's that was sent.
func (c *chain) follow(s *statement) {
	switch {
	case s.ends() && s.info.Chain:
		c.set, c.inherited = false, c.set || c.inherited
	case s.ends():
		*c = chain{}
	case s.known && s.info.SetsAccess:
		c.chosen = true
	}
}

// undoes reports whether a read-only mode that was handed on can be undone in front of a
// leader's check: in each transaction of the chain, because one that fails restores the
// mode, but not where Fencepost has set the mode again.
func (c *chain) undoes() bool { return c.inherited && !c.chosen && !c.set }
