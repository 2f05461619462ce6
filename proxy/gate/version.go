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
