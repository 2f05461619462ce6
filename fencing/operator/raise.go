package operator

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
)

// RaisedEpoch is what RaiseEpochs did to a resource.
type RaisedEpoch struct {
	Epoch fencing.Epoch // the highest recorded one now
	// Raised is false if the recorded epoch was above the floor already. Its holder then
	// keeps it.
	Raised bool
	// Worker held the epoch until it was raised; "" if nobody did.
	Worker string
}

// errRaiseUnknown is errOutcomeUnknown of one of many orders.
var errRaiseUnknown = errors.New("the connection was lost, and this epoch may have been raised, but others were not: see fencepost status, and run the command again")

// RaiseEpochs is for an operator whose database was restored from an older state. It
// puts every resource that is not above floor under an epoch above floor that no one
// holds, so that every former holder is superseded and no lost epoch is granted again.
// Resources that were lost begin above floor, too, when they are recreated. floor is the
// highest epoch that was ever granted (the ZF004 error names it); 0 means unknown, and skips
// far ahead with every resource. Stop all workers of the lost epochs before running it. Each
// raised epoch is an order, which the proxies follow. It returns what became of each resource,
// without those that are removed meanwhile; on an error, of those before it.
func (op Operator) RaiseEpochs(ctx context.Context, floor fencing.Epoch, by Orderer) (map[string]RaisedEpoch, error) {
	var above *int64
	if floor > 0 {
		n := int64(floor)
		above = &n
	}
	var done bool
	if err := op.db.Durable().QueryRow(ctx, "SELECT true FROM fencepost.raise_floor($1)", above).Scan(&done); err != nil {
		return nil, fmt.Errorf("raise the floor of database %q: %w", op.db.Name(), err)
	}
	list, err := op.db.Status(ctx)
	if err != nil {
		return nil, err
	}
	raised := make(map[string]RaisedEpoch)
	for _, st := range list {
		epoch, err := op.db.Advance(ctx, st.Resource, "SELECT fencepost.raise_epoch($1, $2, $3, $4, $5, $6)",
			above, by.AskedBy, by.Reason, op.db.Grace(), op.db.Patience())
		if errors.Is(err, fence.ErrNoResource) || errors.Is(err, fencing.ErrRemoved) {
			continue // if it has been recreated since, it has begun above the floor
		}
		if fence.Unanswered(err) {
			err = fmt.Errorf("%w: %w", errRaiseUnknown, err)
		}
		if err != nil {
			return raised, fmt.Errorf("raise the epoch of resource %q: %w", st.Resource, err)
		}
		now := RaisedEpoch{Epoch: fencing.Epoch(epoch), Raised: fencing.Epoch(epoch) > st.Epoch}
		if now.Raised {
			now.Worker = st.Worker
		}
		raised[st.Resource] = now
	}
	return raised, nil
}
