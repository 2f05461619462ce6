// Package electiontest is the one suite that every lease service must pass,
// against real servers: the service itself and PostgreSQL with the real fence.
//
// Run takes a function that opens a Service for each case. The cases are
// sentences; what they name must hold whatever the service is.
package electiontest

import (
	"context"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// Service is one lease service, made for one case: nobody else uses its leases.
type Service struct {
	// TTL is what the leases of the suite last. A case takes some ten of them.
	TTL time.Duration
	// Death is how long it takes at most, from the last renewal, until another
	// candidate gets the lease of a holder that has gone without a word.
	Death time.Duration
	// Provider returns the service as the named proxy sees it, by a connection
	// that goes through link. The service closes it when the test ends.
	Provider func(t *testing.T, proxy string, link *Link) election.Provider
	// Addr is where the service is, for links.
	Addr string
	// Request is a text that the request of an Acquire which takes the lease for
	// the worker holds, and no other request that goes through the link.
	Request func(worker string) string
	// Bump begins a new life of the service, as an operator does.
	Bump func(t *testing.T)
	// Faults are what an operator can do to a lease that somebody holds.
	Faults []Fault
}

// Fault is something that an operator does to the lease of a resource.
type Fault struct {
	Name string
	Do   func(t *testing.T, resource string)
}

// Run runs all cases. open makes a service for one case; db is a fresh database
// of server, with the schema fencepost.
func Run(t *testing.T, open func(t *testing.T, server *pgtest.Server, db string) *Service) {
	for _, group := range [][]testCase{awardCases, termCases, candidacyCases, addressCases, silenceCases, lateCases, lifeCases} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(newWorld(t, open))
			})
		}
	}
}

// testCase is one sentence, and what shows that it holds.
type testCase struct {
	name string
	run  func(w *world)
}

// patience bounds what a case waits for; nothing takes as long unless it fails.
const patience = 30 * time.Second

// soon is at once, on a busy machine.
const soon = 5 * time.Second

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
		t.Fatalf("it did not happen that %s", what)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, d time.Duration, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v it does not hold that %s", d, what)
		}
	}
}

// always watches that a condition holds for a while.
func always(t *testing.T, what string, d time.Duration, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if !holds() {
			t.Fatalf("it does not hold for %v that %s", d, what)
		}
	}
}
