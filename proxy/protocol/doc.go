// Package protocol is the pure core of a session: bytes go in, and a plan of what to send comes out. It does
// no I/O, reads no clock and starts no goroutine; its owner guards it by a lock.
//
// A session is one of two things, and changes from one to the other between two transactions:
//
//   - A relay: its backend is registered under the epoch that was announced to its client, or it may write without a
//     fence. Its messages pass as they are (relay.go, relaying.go, relay_texts.go, relay_replies.go, pending.go).
//   - Settled: it may only read. That is a follower, an observer, a worker that is not registered yet, a leader whose
//     lease has lapsed, a superseded worker whose writes are discarded, and a connection without a resource under
//     "unfenced: read-only".
//
// # The relay
//
// The relay follows where messages begin, which of them are not answered, and what the last ReadyForQuery said, so that
// it knows when the session is at rest (pending.go). It looks for two strings of bytes in the texts of Query and Parse:
// "fencepost", and "prepare" with "transaction" after it. A text that has one is analyzed. SHOW of Fencepost's
// parameters is answered by Postgres, after a SET of Fencepost's own if the server does not have the current values.
// SET of fencepost.resource and fencepost.token make the session a settled one, which deals with them. PREPARE
// TRANSACTION is refused, because what it prepares outlives the backend. At rest, a message that begins something ends
// the relay if the worker does not lead any more, or its lease is not confirmed: the registration is deleted first
// (NeedUnregister).
//
// # One exchange at a time
//
// An exchange is a Query and its ReadyForQuery, or extended messages up to a Sync and its
// ReadyForQuery. A message that begins an exchange waits (NeedRoom) until the one before it is
// answered, so the state of the server is always known when something is decided. There is no
// queue of replies, and nothing is sent twice. The messages of one batch flow without waiting,
// with one exception: after an Execute of a statement that this session has not seen, the next
// message that may run something waits for the reply, whose tag says whether the transaction
// has ended.
//
// Fencepost's own statements are exchanges of their own (exchange.go), begun before an exchange of
// the client's, and their replies are dropped. They are sent as extended messages with a name, which
// leave the client's unnamed statement and portal alone. There are these:
//
//   - SET default_transaction_read_only = on, whenever the server has not reported that it is on;
//   - SET TRANSACTION READ ONLY, in a block that may be READ WRITE;
//   - SET fencepost.role and the like, whenever the server does not have the current values, so
//     that Postgres itself answers SHOW, however it is sent;
//   - a list of the prepared statements, once, if the session was a leader's before (names.go);
//   - RESET or SET of default_transaction_read_only to the client's own value, when the session becomes a relay;
//   - what opens a block for what it has chosen (choose.go).
//
// # Why nothing is written
//
// A transaction that begins while default_transaction_read_only is on is read-only, unless its
// own statements say otherwise. The server reports the parameter before ReadyForQuery, so a
// change is known before the next exchange, and is undone first. Within one exchange:
//
//   - What follows the end of a transaction would run in one of which nothing is known. A text
//     is therefore sent in parts, each an exchange of its own, that end with COMMIT or ROLLBACK.
//     In a batch, what follows is refused with ZF005 (only BEGIN may follow).
//   - BEGIN READ WRITE and SET TRANSACTION READ WRITE succeed. They too end a part of a text,
//     and what follows them in a batch is refused. SET TRANSACTION READ ONLY comes before the
//     next exchange.
//   - From 16 on, a transaction that has a snapshot cannot leave read-only mode. On 15 a
//     function can get it out, so only reads that the catalog proves harmless pass there, at
//     Parse and again at Bind.
//
// What read-only mode does not stop is refused by its text (decide.go): everything but reads, the
// commands of the session and the transaction, EXECUTE, and, from 16 on, INSERT, UPDATE,
// DELETE and MERGE, which the server itself refuses with 25006. Nothing else can be prepared. A
// session that was a leader's before asks the server for what was prepared then, and decides by that.
// names.go keeps what is known of the names nevertheless: for the proof at Bind before 16, for the
// audit, and to know what an Execute announces.
//
// # Refusals
//
// A refused statement is replaced by one that Postgres cannot parse: its own text and the word
// fencepost_refused (refuse.go). Postgres parses a text as a whole before it runs any of it, so
// nothing of it runs, a syntax error of the client's own is reported as usual, an open block
// fails, and the order of the replies is Postgres's own. The error of that word becomes ZF002,
// ZF003, ZF004 or ZF005. So does 25006, also where the client itself has chosen READ ONLY:
// for a worker that does not lead, the first reason is that it does not lead.
//
// Under "on_stale: discard", a superseded worker's single INSERT, UPDATE, DELETE or MERGE is
// answered as one that has changed nothing (discard.go), and what else writes is refused with ZF001.
//
// # Becoming the leader
//
// An epoch is announced by ZF003, by the answer to SHOW fencepost.role or fencepost.epoch, or
// by SET fencepost.epoch (announce.go). It counts once the plan was sent and nothing of the
// client's was pending. At the next rest, FromClient returns NeedRegister; when the backend
// is registered, the default of the client's own is restored, and the session is a relay.
package protocol
