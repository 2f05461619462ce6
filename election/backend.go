package election

import (
	"context"

	"github.com/fencepost/fencepost/fencing"
)

// Fence is what a candidacy needs of one resource's row in the fence table, in addition
// to what the proxy needs. Its errors are *fencing.Refusal if the fence itself refused:
// ZF001 (another candidacy has been granted an epoch), ZF004 (schema missing, missing
// privilege, database restored), ZF006 (the award is not newer than the recorded one:
// release it), ZF007 (the lease service instance has no number: number it and ask for
// another award). After any other error the outcome is unknown.
type Fence interface {
	fencing.Fence
	// Number numbers an instance of a lease service unless it has a number already. A
	// candidacy must not ask for a lease under an instance before that.
	Number(ctx context.Context, source, instanceID string) error
	// Grant turns an award into an epoch. The same award again returns the same epoch;
	// a newer award of the recorded incarnation keeps the epoch.
	Grant(ctx context.Context, a fencing.Award) (fencing.Epoch, error)
	// Record returns the highest grant.
	Record(ctx context.Context) (fencing.Record, error)
	// SupersededBefore reports whether the worker had an epoch and another worker has
	// been granted a higher one since.
	SupersededBefore(ctx context.Context, worker string) (bool, error)
	// Verify compares what the proxy believes with the database. It returns a
	// *fencing.Refusal if they differ.
	Verify(ctx context.Context, t fencing.Term) error
}

// Backend is what Elections needs for one database.
type Backend struct {
	// Fence returns the fence of a resource, and creates it if there is none.
	Fence func(ctx context.Context, resource string) (Fence, error)
	// Provider awards the leases of this database's resources. Elections
	// closes it.
	Provider Provider
	// CloseIdle, if not nil, is called when the database has had no candidacy for a
	// while, to close its connections. The backend may be used again afterwards.
	CloseIdle func()
	// Close, if not nil, is called after the Provider has been closed.
	Close func()
}
