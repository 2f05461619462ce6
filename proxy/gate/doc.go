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
//   - the server keeps the session read-only, and has said so (ServerReadOnly);
//   - it cannot do anything, because it cannot be parsed (Unparsable), or because the server ends
//     the connection over it (Malformed);
//   - the backend is registered, so that a grant ends it (Registered). All that a leader's session
//     relays passes for this reason;
//   - the triggers of guarded tables refuse its writes (Guarded);
//   - the configuration lets the session write unfenced (Unfenced).
//
// Each constructor also returns whether its Reason holds, and its caller must not use a
// Reason that does not. They rest on what their callers say, so these must know it; Unparsable
// looks at the text.
//
// Whoever adds a path to the server has to name its reason, or it does not
// compile; a zero Reason panics, and the panic ends the session before anything
// is sent.
package gate
