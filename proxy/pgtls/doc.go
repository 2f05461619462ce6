// Package pgtls is TLS as PostgreSQL speaks it, towards clients and towards the
// server: certificates and who is asked for one, the SSLRequest and direct TLS,
// and what SCRAM's channel binding means for a proxy in between. It knows
// nothing of sessions and refusals: its errors say what is wrong, and package
// proxy has the errors that a client gets.
//
// Clients is the side of clients, Upstream that of Postgres. Each reads its files
// when it is made, and again when they have changed; files that cannot be used are
// logged, and the earlier ones hold. Both are nil where TLS is off, and may be
// asked then.
//
// A Conn is a connection under TLS, and a netloop.Conn itself. It starts no goroutine, and waits for no peer
// when it is closed. It has the owner of the connection below it, which it closes. TLS itself never waits: a
// recordReader gives it what has arrived, and a recordWriter takes what it writes.
//
// # What always holds
//
//   - No byte in the clear passes for one under TLS: nothing is read after an
//     SSLRequest, or after Postgres's answer to one, but by TLS itself.
//   - Unread of a Conn is 0 only if all that has arrived was read. What has arrived
//     is in the connection below, past the end of the record that TLS was handed, a part
//     of that record, or decoded; and each of these is asked.
//   - No one changes what SCRAM signs. Channel binding is relayed where the client
//     sees Postgres's own certificate (SameServer); elsewhere it is left out of the
//     offer (WithoutBinding), and a client that misses it (MissesBinding) has to be
//     refused.
package pgtls
