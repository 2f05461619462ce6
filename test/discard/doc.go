// Package discard tests resources whose stale writes are discarded (on_stale: discard) on real
// servers: what a superseded session is answered, that nothing of what it writes is executed,
// and that its answers are true while others are granted epochs.
package discard
