package gate

// Version is the major version of a server. Each of its methods is one rule in which
// the versions differ; nothing else compares versions. A version that is not known is
// 0, and is taken for the oldest.
type Version int

// KeepsReadOnly reports whether a transaction that was made read-only stays so. Before
// 16, RESET transaction_read_only undoes it even after the first query, within a
// function too, and what follows, a COMMIT among it, can write. From 16 on Postgres
// refuses that: the parameter has GUC_NO_RESET (guc_tables.c).
// TestSafetyReadOnlyModeIsNotUndone shows both.
func (v Version) KeepsReadOnly() bool { return v >= 16 }

// ExecuteOpensBlock reports whether what follows an Execute, up to the next Sync,
// stands in an implicit transaction block. From 18 on it does: start_xact_command in
// postgres.c calls BeginImplicitTransactionBlock where XACT_FLAGS_PIPELINING is set.
// What Postgres refuses outside a block, or does nothing for, is then accepted.
// TestProtocolTransactions and TestProtocolPortals show it.
func (v Version) ExecuteOpensBlock() bool { return v >= 18 }

// QueryContinuesBatch reports whether a Query, or a function call, that follows an
// Execute without a Sync goes on with its transaction, is answered, and commits
// nothing. From 18 on it does, because the implicit block of ExecuteOpensBlock ends
// with a Sync alone. TestProtocolPipelines and TestProtocolTranscripts show it.
func (v Version) QueryContinuesBatch() bool { return v >= 18 }
