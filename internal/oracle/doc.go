// Package oracle observes the server side of a proxied session independently of what
// the proxy believes. It sees the bytes in both directions, maintains its own model of
// PostgreSQL, and complains when a message is sent that may run anything while its
// transaction may have neither a check, nor read-only mode, nor a registration in the
// registry.
//
// The model keeps the set of states in which the server may be when it processes the
// next message: every statement without a reply may have succeeded or failed. A message
// must be covered in each of those states. So a check without a reply covers what
// follows it in the same batch or text, because the server skips the rest if the check
// fails. It does not cover anything after the next Sync, because from there on only the
// reply shows whether it passed. Replies reduce the set.
//
// The package shares no code with package proxy. It is for tests and for
// FENCEPOST_DEBUG_ORACLE=1. Facts that are not visible on the wire must be passed to
// it: Facts, and when the session's backend was registered.
//
// An observer can be given the ledger of grants, to verify for each registration that
// its epoch was granted to the candidacy, because the registry's own answer is not
// under the observer's control.
//
// It does not verify what functions, views and triggers do, nor that the catalog proves
// a read (with reads: proven, single SELECTs outside a block are trusted), nor that no
// function contains a DEALLOCATE and PREPARE of the check's random name.
package oracle
