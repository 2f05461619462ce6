// Package sqltext says what a SQL text does, as far as its syntax shows: which kind of
// statement it holds (Analyze, Quick), whether it is nothing but a read, and whether a
// database's catalog proves that it is (Proven). It is the only user of the grammar, and
// outside of tests the only package that looks into SQL: others ask a Statement or a Guess.
//
// What was parsed and what was not are two types. A Statement may say that nothing has
// to stand in front of it; a Guess, which is all there is of a text that was not parsed,
// can only forbid.
package sqltext
