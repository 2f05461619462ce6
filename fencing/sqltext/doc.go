// Package sqltext analyses SQL text as far as its syntax shows: which kind of statement
// it contains (Analyze, Quick), whether it is only a read, and whether a database's
// catalog proves that (Proven). It is the only user of the grammar and, outside tests,
// the only package that looks into SQL: others use a Statement or a Guess.
//
// Parsed and unparsed text have different types. A Statement may say that nothing needs
// to be injected before it. A Guess, which is all that exists for unparsed text, can
// only forbid.
package sqltext
