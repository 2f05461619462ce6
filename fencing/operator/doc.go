// Package operator gives the orders of an operator to the fences of a database, and reads those that were given.
//
// # Orders
//
// Evict, Pause, Resume, Handover, Remove and Prune are orders of an operator. An order that takes
// the lead from a worker records an epoch that no one holds, and waits for transactions
// and registered backends exactly like a grant. A bar, which keeps a worker or everyone
// from being granted an epoch, is set and read under the lock of the fence row. Its
// refusal (ZF008) reaches callers of Grant as a *fencing.Barred. So does that of an offer, which
// Handover makes to one worker: no one else is granted an epoch while it lasts. Remove deletes the fence's
// row, so that every registration against it fails from then on; a fence that is
// recreated has another id, and begins at a floor above the epochs of all removed ones. Each
// order is kept in fencepost.orders, and the proxies ask for new ones (Orders).
//
// # Recovery by an operator
//
// Two things can go back in time. If the database was restored from an older state, its epochs are lower than those
// that were granted. (A database that was dropped and recreated is another one: the schema gives each an identity, see
// fencing.ErrReplaced.) Proxies that saw the higher ones are refused (ZF004) until RaiseEpochs puts every resource
// above them, under an epoch that no one holds. If the lease service was restored or rebuilt, or replaced by another
// one, its awards look older than the recorded ones (ZF006) until it has a new instance id. A new id is numbered as a
// new generation when it is first seen, before anyone asks for a lease under it. A grant under an id without a number
// is refused (ZF007), so that no award of an older generation can pass for a newer one. `fencepost generation bump`
// gives the lease service a new id, and calls RaiseEpochs.
package operator
