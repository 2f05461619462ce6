// Package protocol is the pure core of a session: bytes of either side go in, and a plan
// of what to send on comes out. It waits for nothing, does no input or output, reads no
// clock and starts no goroutine; its owner guards a Machine by a lock.
//
// # The methods
//
// A session uses the 16 exported methods of Machine, and nothing else of it. What has one type is
// one method, such as Answer and Is; what is left differs in its results:
//
//   - FromClient, FromServer and Answer take what comes in: from the client, from the server,
//     and from the session that has met a Need;
//   - AppendPrepare, Prepared and AppendGreeting are for the startup;
//   - Announced, Unregistered and ClientEnded say what the session has done or seen;
//   - Is answers each question that can be answered by yes or no, RegisterRequest says what to
//     register, and Checked what the client has chosen;
//   - Rejection, Attempt, InFlight and Shadowed, in rejection.go and shadow.go, are for the audit.
//
// # From a client's message to the server
//
// FromClient frames the message. What follows is:
//
//   - statement.go and package sqltext say what the message may run;
//   - decide.go says what goes in front of it: nothing, the check, the verdict, read-only
//     mode, a refusal, the registration of the backend; or that its message must wait
//     before that is known. situation.go lists what the decision rests on, and all that can
//     be decided. What the server rejects unread, and a Query of a session that writes
//     unfenced, needs no decision. own_sync.go says before it whether the message waits for
//     answers, or for a Sync of Fencepost's, because of what was sent earlier;
//   - inject in inject.go carries every decision out. It asks the statement's carrier how:
//     inject_message.go for an extended message, inject_query.go for a Query of one
//     statement, inject_text.go for a Query of several. The carrier of a fast path call is
//     in inject.go itself. verdict.go sends verdicts, and what takes the place of a write
//     that is discarded;
//   - package gate lets the message pass for a reason, and knows the transaction.
//
// A decision that needs something from outside ends FromClient with a Need, which the session
// meets without its lock, and answers by Answer.
//
// # From the server's message to the client
//
// reply_queue.go holds one entry for each message that was sent, the client's and
// Fencepost's own. server.go matches what the server says with the entry in front, drops
// replies to Fencepost's own messages, and forwards the rest. errors.go turns an error of
// the check into what the client sees. A message that cannot be a reply to the entry in
// front ends the session: nothing is guessed.
//
// # The transaction
//
// gate.Txn knows where the transaction of the next message stands and what covers it;
// announced.go knows which epoch the client knew when it began. chosen.go knows which resources
// it is checked for, if the client has chosen other ones than that of the startup, and aim.go
// which of them decides.
package protocol
