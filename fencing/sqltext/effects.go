package sqltext

// Effect is a set of what a statement does. Each constant is a set of one; | joins them.
type Effect uint32

const (
	// EndsTransaction: COMMIT, ROLLBACK (not ROLLBACK TO), and the statements of two-phase commit.
	EndsTransaction Effect = 1 << iota
	// MayEndTransaction: CALL and DO, which run code that the text does not show.
	MayEndTransaction
	// Chains: COMMIT or ROLLBACK with AND CHAIN, which begins the next transaction.
	Chains
	// UsesSavepoint: SAVEPOINT, RELEASE and ROLLBACK TO.
	UsesSavepoint
	// ChoosesReadWrite: BEGIN or SET that may make the transaction READ WRITE.
	ChoosesReadWrite
	// UnsetsReadOnly: it may undo a read-only mode that was set by the transaction's first query, which PostgreSQL 15
	// allows: RESET transaction_read_only, SET of it to DEFAULT, and set_config. (RESET ALL, SET TRANSACTION READ WRITE
	// and SET SESSION CHARACTERISTICS do not.)
	UnsetsReadOnly
	// SetsDefaultReadOnly: SET of default_transaction_read_only to on, or to a value that may mean that, and SET
	// SESSION CHARACTERISTICS that does so.
	SetsDefaultReadOnly
	// SetsDefaultReadWrite: the same to off.
	SetsDefaultReadWrite
	// RestoresDefault: default_transaction_read_only gets the value that it had at the start of the session: by RESET
	// of it, by SET of it to DEFAULT, or with all others.
	RestoresDefault
	// ResetsAll: RESET ALL and DISCARD ALL. RESET ALL also resets the settings of a transaction.
	ResetsAll
	// SetsLocally: SET LOCAL, whose value ends with the transaction.
	SetsLocally
	// SetsCurrent: SET FROM CURRENT, whose value is not in the text.
	SetsCurrent
	// SetsConfig: it calls set_config.
	SetsConfig
	// EvadesReadOnly: it calls a function by name that read-only mode does not stop.
	EvadesReadOnly
	// ReadsSince16: it is no Read, but cannot write in a transaction that a server of 16 or later keeps read-only: LOCK
	// TABLE IN ACCESS SHARE MODE, which is the lock of a SELECT, a SELECT of set_config for a setting that its text
	// does not name, EXPLAIN ANALYZE of a SELECT, and SET CONSTRAINTS. pg_dump sends the first two.
	ReadsSince16
	// Prepares: PREPARE, which defines Name.
	Prepares
	// Executes: EXECUTE of the prepared statement Name.
	Executes
)

// Does reports whether the statement has any of these effects.
func (st *Statement) Does(e Effect) bool { return st.effects&e != 0 }
