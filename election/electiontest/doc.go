// Package electiontest is the conformance suite for lease services. It runs against
// real servers: the service itself, and PostgreSQL with the real fence.
//
// Run takes a function that opens a Service for each case. The name of each case is a
// sentence that must hold for every service. RunElections adds the cases that are about
// package election: what it makes of its faults does not depend on which service awards
// the leases, so they run on one of them. RunStore is about the Store of a service that keeps
// records (package kv). Outage, Full, Members, Rights, PasswordFile and Certificates are what happens to
// servers of a test's own; each provider says how that is brought about with its service.
//
// Faults strike at the methods of the Provider (faultyProvider): a call fails before
// anything is sent, its answer is lost or late, or it hangs until its context ends. Only
// what no method shows takes a faulty connection (Link): a proxy that is dead to its
// service, calls that must return although the service does not answer, and the few cases
// in wire.go.
package electiontest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

// Service is one lease service for one case: no one else uses its leases.
type Service struct {
	// TTL is the TTL of the leases in the suite. A case takes about ten of them.
	TTL time.Duration
	// Death is the longest time from the last renewal of a holder that died silently
	// until another candidate gets the lease.
	Death time.Duration
	// Provider returns the service as the named proxy sees it, over a connection
	// through link. The service closes it when the test ends.
	Provider func(t *testing.T, proxy string, link *Link) elector.Provider
	// Addr is the service's address, for links.
	Addr string
	// Request returns a text that occurs in the request of an Acquire for the worker,
	// and in no other request through the link. It is nil if there is no such text; the
	// cases that need it are then skipped.
	Request func(worker string) string
	// Adopts: the provider is an elector.Adopter that knows the leases of other processes.
	Adopts bool
	// Multiplexed: requests share one connection.
	Multiplexed bool
	// Supersedes: when a client connects again, the service closes its earlier connection, so that
	// what is still under way on that one never arrives.
	Supersedes bool
	// Bump gives the service a new instance id, as an operator does.
	Bump func(t *testing.T)
	// Wipe deletes all that the service keeps, as if its data were lost.
	Wipe func(t *testing.T)
	// Backup returns a function that puts the service back to its present state, as an operator
	// does who restores a backup. Only RunRestores needs it.
	Backup func(t *testing.T) (restore func(t *testing.T))
	// Faults are what an operator can do to a held lease.
	Faults []Fault
	// Token, if not nil, returns the token that a worker brings: the provider is an
	// elector.TokenProvider, which awards no leases. Generation returns the generation in force.
	Token      func(worker string) int64
	Generation func() int64
}

// Fault is something that an operator does to the lease of a resource.
type Fault struct {
	Name string
	Do   func(t *testing.T, resource string)
}

// Run runs the cases that show what a service does. open creates a service for one case; db
// is a fresh database of server with the schema fencepost.
func Run(t *testing.T, open func(t *testing.T, server *pgtest.Server, db string) *Service) {
	run(t, serviceCases(), open)
}

// RunElections runs the cases that show what package election does, whatever the service.
func RunElections(t *testing.T, open func(t *testing.T, server *pgtest.Server, db string) *Service) {
	run(t, electionCases(), open)
}

// RunRestores runs the cases in which a backup is restored. open creates a service for one case,
// and no one else uses that service.
func RunRestores(t *testing.T, open func(t *testing.T, server *pgtest.Server, db string) *Service) {
	run(t, restoreCases, open)
}

func run(t *testing.T, cases []testCase, open func(t *testing.T, server *pgtest.Server, db string) *Service) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(newTestEnv(t, open))
		})
	}
}

// RunCases runs the cases of these names, for a service to which the others do not apply.
func RunCases(t *testing.T, names []string, open func(t *testing.T, server *pgtest.Server, db string) *Service) {
	all := slices.Concat(serviceCases(), electionCases())
	var cases []testCase
	for _, name := range names {
		i := slices.IndexFunc(all, func(c testCase) bool { return c.name == name })
		if i < 0 {
			t.Errorf("there is no case %q", name)
			continue
		}
		cases = append(cases, all[i])
	}
	run(t, cases, open)
}

func serviceCases() []testCase {
	return slices.Concat(awardCases, termCases, takeoverCases, reachCases, instanceCases, takingCases, passingCases, wireCases)
}

func electionCases() []testCase {
	return slices.Concat(candidacyCases, addressCases, silenceCases, lateCases, numberCases, ownCases)
}

// testCase is one sentence and the test that shows that it holds.
type testCase struct {
	name string
	run  func(w *testEnv)
}

// patience bounds every wait of a case. It is only reached if the case fails.
const patience = 60 * time.Second

// soon is the time within which something immediate happens on a busy machine. It is well below
// long, so that no lease has expired by then.
const soon = 60 * time.Second

// within returns a context that ends with the test at the latest.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// await waits for a channel to be closed.
func await(t *testing.T, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatalf("this did not happen: %s", what)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, d time.Duration, holds func() bool) {
	t.Helper()
	stopwatch.Eventually(t, d, what, holds)
}

// always checks that a condition holds for a while.
func always(t *testing.T, what string, d time.Duration, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if !holds() {
			t.Fatalf("this does not hold for %v: %s", d, what)
		}
	}
}
