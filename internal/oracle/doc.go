// Package oracle watches the server's side of a proxied session and trusts
// nothing that the proxy believes. It sees the bytes that go to the server and
// the bytes that come back, keeps a model of PostgreSQL of its own, and complains
// when a message goes out that may run anything while its transaction may have
// neither a check, nor read-only mode, nor a note in the registry.
//
// The model keeps the set of the states in which the server may be when it comes
// to the next message: every statement that was not answered yet may have
// succeeded or failed. A message must be covered in each of those states. So a
// check that was only sent covers what follows it in the same batch or text,
// because the server skips the rest if the check fails, and covers nothing after
// the next Sync, because then only the answer tells. Answers make the set smaller.
//
// It shares no code with package proxy, and is for tests and for
// FENCEPOST_DEBUG_ORACLE=1. What it cannot see are facts of the session that it
// is told: Facts, and when the session's backend was noted in the registry.
//
// An observer can be given the ledger of grants, to ask of each note whether its
// epoch was granted to the candidacy: the registry's own word is no more than a
// fact from outside.
//
// It does not judge what functions, views and triggers do, whether the catalogue
// proves a read (reads: proven is taken on trust, for lone SELECTs outside a
// block), or that nobody hides a DEALLOCATE and PREPARE of the check's random
// name inside a function.
package oracle
