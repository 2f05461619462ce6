// Package sqltext analyses SQL text as far as its syntax shows: which kind of statement
// it contains (Analyze, Quick), whether it is only a read, and whether a database's
// catalog proves that (Proven). Other packages use a Statement or a Guess. Only
// internal/oracle, which observes sessions in tests and with FENCEPOST_DEBUG_ORACLE=1,
// also uses the grammar and looks into SQL itself, to find faults of this package.
//
// Parsed and unparsed text have different types. A Statement may say that nothing needs
// to be injected before it. A Guess, which is all that exists for unparsed text, can
// only forbid.
package sqltext
