// Package system holds no code, only tests of the whole: the fencepost program
// as processes, in front of real PostgreSQL servers and beside a real Consul,
// with workers that are processes too, so that they can be frozen, thawed and
// killed.
//
// # How a test is made
//
//   - house_test.go starts what a case needs: a database, a lease service,
//     proxies (proxy_test.go) and workers;
//   - a worker (worker_test.go) is this test program once more. It does what it
//     is told, one order per line, or runs a load of its own (load_test.go). An
//     order can be given to a frozen worker: it is what the worker does first
//     when it is thawed;
//   - a load reads a counter, thinks, and writes what it read plus one, together
//     with rows that say who wrote it under which epoch. check_test.go compares
//     what the workers were told, what the database holds, and the ledger of
//     grants;
//   - chaos_test.go runs loads under random faults. Its seed is printed;
//     FENCEPOST_CHAOS_SEED repeats its choices (not the machine's timing), and
//     FENCEPOST_CHAOS_TIME sets how long it takes.
//
// Safety tests (TestSafety...) must fail when they are built with the tag
// fencepost_unfenced; the program they run is then built with it too.
package system
