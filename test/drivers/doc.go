// Package drivers holds no code of ours, only tests: what real drivers meet at
// Fencepost.
//
// Each driver has a small program in its own language, which runs one of four
// parts and prints a line of JSON per scenario:
//
//   - scenarios: the list in scenarios_test.go, as a worker that leads. It runs
//     once directly against PostgreSQL and once through Fencepost, and every
//     line must be the same: the result, which is also written down in the list
//     for all drivers alike, and a detail, which is the driver's own view (column
//     types, messages, positions, notices). What a driver cannot do at all is
//     said in the list too; it must say so itself, in these words;
//   - follower: another worker leads. Reads pass, each way to write is refused
//     with ZF002, and the driver goes on with the same connection;
//   - stale and stale_transaction: the worker leads, and is superseded between a
//     read and its write, outside and inside a transaction. The driver must
//     surface ZF001, and its pool, where it has one, must take the connection
//     for broken and open another.
//
// A program finds its connection in libpq's variables: PGHOST, PGPORT, PGUSER,
// PGDATABASE, and PGOPTIONS, which names the resource and the worker (it is not
// set for the direct run). The parts that are superseded print {"ready": true}
// when they have read, and go on when they get a line on standard input.
//
// The Go programs are a module of their own, so that lib/pq is no dependency of
// Fencepost, not even of its tests.
//
// A missing driver fails the tests. scripts/drivers.sh brings them.
package drivers
