// Package gate is the only way by which a client's bytes reach the server once the
// session has started.
//
// A message that may run something (Query, Parse, Bind, Describe, Execute,
// FunctionCall) passes with a Reason, and only with one: Gate.Pass and Gate.PassText
// take it. Gate.Rest sends more of a message that has passed. Gate.CopyData needs no
// Reason, because the Query or Execute that began the COPY had one. Plan.Relay sends
// on what can run nothing, and Plan.Own what holds nothing of the client's.
//
// Only this package can make a Reason. There is a constructor for each thing that makes
// a message safe to send:
//
//   - its transaction was given a check, or is read-only (Txn.Covered);
//   - it cannot do anything, as the tree of its text proves (Txn.Harmless,
//     Txn.NothingOutside, Proven, Empty), or because the server rejects it
//     before it reads it (Inert, Malformed);
//   - the backend is registered, so that a grant ends it (Registration);
//   - its transaction, or its batch, is known to have failed (Txn.Dead, Txn.Skipped);
//   - the triggers of guarded tables refuse its writes (Guarded);
//   - the configuration lets the session write unfenced (Unfenced).
//
// Each constructor also returns whether its Reason holds, and its caller must not use a
// Reason that does not. Most find that out from a parse tree, from the bytes of the
// message or from the transaction. Unfenced, Guarded, Registered and Malformed rest on
// what their callers say, so these must know it.
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
