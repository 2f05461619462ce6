// Package playground is a web page on which workers compete for a lease, are frozen, killed and cut off,
// and on which two leaders of a partitioned cluster write.
//
// Everything on the page is real but two things: the faults, and the elections of the scene with two
// leaders (package textbook). There is a throwaway PostgreSQL with a real fence and real leases; each
// proxy is what fencepost serve runs; each worker is a process of its own (RunWorker), an application
// that knows pgx, SQL, and how to name itself. A frozen worker is stopped by SIGSTOP, a killed one by
// SIGKILL, and a partition holds up the bytes between a worker and its proxy (relay).
//
// A Lab is what happens behind the page: a scene with its workers, what they report, what Fencepost
// logs, and what the database has. The page shows the State of a Lab and asks it for deeds.
package playground
