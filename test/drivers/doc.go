// Package drivers contains no code, only tests of how real drivers work with Fencepost.
//
// Each driver has a small program in its own language, which runs one of four parts and
// prints a line of JSON per scenario:
//
//   - scenarios: the list in scenarios_test.go, as a worker that leads. It runs once
//     directly against PostgreSQL and once through Fencepost, and every line must be
//     the same: the result, which the list also specifies for all drivers, and a
//     detail, which is the driver's own view (column types, messages, positions,
//     notices). The list also says what a driver cannot do at all; the driver's program
//     must report that in the same words. What stands on another driver of the list,
//     or only on libpq, runs some of them (runs);
//   - follower: another worker leads. Reads succeed, each way to write is refused with
//     ZF002, and the driver continues with the same connection. What stands on another
//     driver runs it on the default server only;
//   - stale and stale_transaction: the worker leads, and is superseded between a read
//     and its write, outside and inside a transaction. The driver must report ZF001,
//     and its pool, if it has one, must treat the connection as broken and open
//     another. What stands on another driver runs the second only.
//
// The pools have programs of their own (pool_*), or a part pool. Such a program inserts
// rows through its pool of three connections in three loops, never stops at an error,
// and prints the result of each INSERT: ok, or the error's SQLSTATE, or what the
// driver has in its place. Each line on standard input makes it silent, or ends the
// silence. pools_test.go has the table of what they see, which is also the one in
// docs/pools.md.
//
// A program finds its connection in libpq's variables: PGHOST, PGPORT, PGUSER,
// PGDATABASE, and PGOPTIONS, which names the resource and the worker (it is not set for
// the direct run). The parts in which the worker is superseded print {"ready": true}
// when they have read, and continue when they get a line on standard input.
//
// The Go programs are a separate module, so that lib/pq is not a dependency of
// Fencepost, not even of its tests.
//
// A missing driver fails the tests. scripts/drivers.sh installs them.
package drivers
