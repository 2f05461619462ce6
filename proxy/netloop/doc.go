// Package netloop moves bytes. Its connections learn from event loops of this package when
// they can be read or written. It does not know what the bytes mean, and imports no other
// package of Fencepost.
//
// A Conn is a net.Conn. Whoever reads from it may also call OnReadable and leave the
// waiting to the loop, which then has a Reader serve the connection whenever there is
// something to read. So a proxy moves a message by one read and one write, without a
// read that finds nothing and without a switch of goroutines; an idle connection has
// no goroutine; and what may wait stays plain blocking code, which the Reader
// continues in a goroutine of its own where the serving stopped.
//
// # Two implementations
//
// On Linux a Loop is an epoll descriptor and one goroutine for all of its
// connections, which calls their Readers one after the other. On other Unix
// systems, and with the build tag fencepost_plainnet, a Conn lies above a plain
// net.Conn: a goroutine of its own waits in the runtime's poller and reads ahead,
// and OnReadable does not return before the serving is over. The tests hold
// both to the same contract.
//
// # Goroutines
//
// A Loop's goroutine is owned by the Loops that started it, whose Close waits for
// it. A plain connection's is owned by the connection, whose Close waits for it.
//
// # What always holds
//
//   - Nothing blocks on a loop's goroutine: neither the package nor a Reader. It
//     would hold up every other connection of the loop.
//   - A Reader that stays is called again for whatever arrives after its read,
//     the end of input included; and when its serving is over, that is reported once,
//     and nothing is called any more.
//   - Unread is 0 only if all that has arrived was read. The fence rests on this:
//     see "Announcing the epoch" in ARCHITECTURE.md.
//   - After Withdraw, nothing of the Reader is called, and after Detach, no byte is read, until someone asks for it.
//   - A closed connection's events reach no other connection, even one that has got
//     its descriptor.
package netloop
