// Package sqltext analyses SQL text as far as its syntax shows: which kind of statement
// it contains (Analyze, Quick), what that does (Statement.Does), whether it is only a read,
// and whether a database's catalog proves that (Proven). FateOf says what becomes of a
// statement in a session that may only read. No other package looks into SQL. Of a text that
// is not parsed nothing is known, and it is treated as if it did the worst.
package sqltext
