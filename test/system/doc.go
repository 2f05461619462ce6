// Package system contains no code, only tests of the whole system: the fencepost
// program as processes, in front of real PostgreSQL servers and with a real Consul, and
// workers that are processes too, so that they can be frozen, thawed and killed.
//
// # How a test works
//
//   - cluster_test.go starts what a case needs: a database, a lease service, proxies
//     (package fixture/process) and workers;
//   - a worker (worker_test.go) is another process of this test program. It follows
//     orders, one per line, or runs a load of its own (load_test.go). A frozen worker
//     can be given an order, which it executes first when it is thawed;
//   - a load reads a counter, pauses, and writes the value plus one, together with rows
//     that say who wrote it under which epoch. check_test.go compares the workers'
//     reports, the contents of the database, and the ledger of grants;
//   - chaos_test.go runs loads under random faults. It prints its seed;
//     FENCEPOST_CHAOS_SEED repeats its choices (not the machine's timing), and
//     FENCEPOST_CHAOS_TIME sets its duration.
//
// Safety tests (TestSafety...) must fail when they are built with the tag
// fencepost_unfenced. The program that they run is then built with it too.
package system
