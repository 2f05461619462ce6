// Package gate is the only way by which a client's bytes reach the server.
//
// A message that may run something (Query, Parse, Bind, Describe, Execute,
// FunctionCall, CopyData) passes with a Reason, and only with one. A Reason
// cannot be made up: each constructor in this package asks for the evidence it
// rests on, and there is one for each thing that makes a message safe to send:
//
//   - its transaction was given a check, or is read-only (Txn.Covered);
//   - it cannot do anything, as the tree of its text proves (Txn.Harmless,
//     Txn.NothingOutside, Proven, Empty), or because the server rejects it
//     before it reads it (Inert, Malformed);
//   - the backend is registered, so that a grant ends it (Registration);
//   - its transaction, or its batch, is known to have failed (Txn.Dead);
//   - the configuration lets the session write unfenced (Unfenced).
//
// Whoever adds a path to the server has to name its reason, or it does not
// compile; a zero Reason panics, and the panic ends the session before anything
// is sent.
//
// # The transaction
//
// Txn is what is known of the session's transaction. Its client's side says what
// the messages that were sent make of it (Sent), its server's side what the
// replies said (Answered). The two differ while replies are pending: the client's
// side then trusts nothing but what stands in the same batch.
package gate
