package operator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// Evict takes the lead of a resource from whoever has it or, if worker is not empty, from
// that worker alone: the resource is then under a higher epoch that no one holds. If bar is
// not 0, the worker may not campaign for so long; a worker that is named may not even if it
// does not lead. Evict returns nil if there was nothing to do. Like a grant, it ends the
// transactions that outlast the grace.
func (op Operator) Evict(ctx context.Context, resource, worker string, bar time.Duration, by Orderer) (*fencing.Order, error) {
	var duration *time.Duration
	if bar > 0 {
		duration = &bar
	}
	return op.order(ctx, resource, "SELECT fencepost.evict($1, nullif($2, ''), $3, $4, $5, $6, $7)",
		worker, duration, by.AskedBy, by.Reason, op.db.Grace(), op.db.Patience())
}

// Pause takes the lead from whoever has it, and keeps everyone from being granted an epoch
// until Resume. It returns nil if the resource is paused already.
func (op Operator) Pause(ctx context.Context, resource string, by Orderer) (*fencing.Order, error) {
	return op.order(ctx, resource, "SELECT fencepost.pause($1, $2, $3, $4, $5)", by.AskedBy, by.Reason, op.db.Grace(), op.db.Patience())
}

// Resume ends the pause of a resource or, if worker is not empty, lets that worker campaign
// again. It returns nil if there was nothing to end.
func (op Operator) Resume(ctx context.Context, resource, worker string, by Orderer) (*fencing.Order, error) {
	return op.order(ctx, resource, "SELECT fencepost.resume($1, nullif($2, ''), $3, $4)", worker, by.AskedBy, by.Reason)
}

// handoverDelay is how long a leader continues after it is ordered to hand over: by then every proxy,
// which looks for orders once a second, knows that it must leave the lease to the chosen worker.
const handoverDelay = 1500 * time.Millisecond

// Handover offers the lead of a resource to a worker, for last after the leader is stopped; if last is 0, for
// the grace and the patience. It only makes the offer: package handover says what becomes of it. The
// same offer again returns the order that has made it. Handover returns nil if the worker leads already.
// If it cannot lead, the error is a *fencing.Refusal (StateNotHandedOver) that says why, and whose hint
// names the workers that could.
func (op Operator) Handover(ctx context.Context, resource, worker string, last time.Duration, by Orderer) (*fencing.Order, error) {
	if last == 0 {
		last = time.Duration(op.db.Grace()) + op.db.Patience()
	}
	return op.order(ctx, resource, "SELECT fencepost.handover($1, $2, $3, $4, $5, $6)", worker, handoverDelay, last, by.AskedBy, by.Reason)
}

// Remove deletes everything that the database knows of a resource. Connections that still
// use its fence are refused (ZF004). Unless force is true, a resource in use is refused
// with a *fencing.Refusal, ZF009. So is one that guards tables, always.
// Remove returns nil if the resource was removed at the same time by someone else.
func (op Operator) Remove(ctx context.Context, resource string, force bool, by Orderer) (*fencing.Order, error) {
	if err := op.unguarded(ctx, resource); err != nil {
		return nil, err
	}
	// What was guarded once and is not any more is forgotten first.
	return op.order(ctx, resource, "SELECT fencepost.remove($1, $2, $3, $4, $5, $6) FROM fencepost.unguard($1)",
		force, by.AskedBy, by.Reason, op.db.Grace(), op.db.Patience())
}

// unguarded returns a *fencing.Refusal, ZF009, if the resource guards tables, which no one
// could write any more.
func (op Operator) unguarded(ctx context.Context, resource string) error {
	var tables []string
	err := op.db.Pool().QueryRow(ctx, "SELECT coalesce(array_agg(DISTINCT g.root::text), '{}') FROM fencepost.guards g JOIN fencepost.fence f ON f.id = g.fence WHERE f.resource = $1", resource).Scan(&tables)
	switch {
	case err != nil:
		return fmt.Errorf("look for guards of resource %q: %w", resource, op.db.Explain(err))
	case len(tables) == 0:
		return nil
	}
	return &fencing.Refusal{
		SQLState: fencing.StateInUse,
		Message:  fmt.Sprintf("resource %s was not removed: it guards %d tables: %s", fencing.Quoted(resource), len(tables), fencing.ASCII(strings.Join(tables, ", "))),
		Hint:     "Remove their guards first: fencepost guard remove --table TABLE --dsn DSN",
	}
}

// Prune deletes the grants that are older than keep, except the newest of each resource,
// and returns how many. A worker id that was superseded in a deleted grant counts as new.
func (op Operator) Prune(ctx context.Context, keep time.Duration, by Orderer) (deleted int64, err error) {
	if err := op.db.Durable().QueryRow(ctx, "SELECT fencepost.prune($1, $2, $3)", keep, by.AskedBy, by.Reason).Scan(&deleted); err != nil {
		return 0, fmt.Errorf("prune the ledger of database %q: %w", op.db.Name(), err)
	}
	return deleted, nil
}
