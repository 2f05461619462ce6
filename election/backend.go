package election

import (
	"context"

	"github.com/fencepost/fencepost/fencing"
)

// Fence is what a candidacy needs of one resource's row in the fence table,
// beyond what the proxy needs of it. Its errors are *fencing.Refusal where the
// fence itself has spoken: ZF001 (another candidacy was granted since), ZF004
// (missing, no right, restored), ZF006 (the award is not newer than the
// recorded one: it is to be given back), ZF007 (the life of the lease service has
// no number: number it, and ask for another award). All others mean unknown.
type Fence interface {
	fencing.Fence
	// Number gives a life of a lease service its number, unless it has one. No
	// candidacy may bid under a life before that.
	Number(ctx context.Context, source, marker string) error
	// Grant turns an award into an epoch. The same award again returns the
	// same epoch; a newer award of the recorded incarnation keeps the epoch.
	Grant(ctx context.Context, a fencing.Award) (fencing.Epoch, error)
	// Record returns the highest grant.
	Record(ctx context.Context) (fencing.Record, error)
	// SupersededBefore reports that the worker had an epoch and another worker
	// was granted a higher one since.
	SupersededBefore(ctx context.Context, worker string) (bool, error)
	// Verify compares what the proxy believes with what the database holds. It
	// returns a *fencing.Refusal if they differ.
	Verify(ctx context.Context, t fencing.Term) error
}

// Backend is what Elections needs of one database.
type Backend struct {
	// Fence returns the fence of a resource, and makes it if there is none.
	Fence func(ctx context.Context, resource string) (Fence, error)
	// Provider awards the leases of this database's resources. Elections
	// closes it.
	Provider Provider
	// CloseIdle, if not nil, is called when the database has been without a candidacy
	// for a while, so that it keeps no connection. It may be used again.
	CloseIdle func()
	// Close, if not nil, is called after the Provider was closed.
	Close func()
}
