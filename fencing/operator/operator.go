package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
)

// ErrUnread means that an order was given, and that what it did could not be read then.
var ErrUnread = errors.New("it was given, and could not be read back: see fencepost status and fencepost resource list")

// errOutcomeUnknown means that the connection was lost after an order was sent.
var errOutcomeUnknown = errors.New("the connection was lost, and the order may have been given: see fencepost status and fencepost resource list")

const (
	// attempts is how often an order is given to a resource that is removed meanwhile.
	attempts = 5
	// readTimeout bounds the reading of an order that was given.
	readTimeout = 5 * time.Second
)

// Operator gives orders to the fences of one database, and reads those that were given. It is safe for concurrent use.
type Operator struct{ db *fence.Database }

// New returns the Operator of a database.
func New(db *fence.Database) Operator { return Operator{db} }

// Orderer says who gives an order, and why. Both are kept with the order.
type Orderer struct {
	AskedBy string
	Reason  string
}

// order runs a statement that gives an order to the resource's fence, whose id is its parameter $1. The
// statement returns the id of the order, 0 for none. If the fence is removed meanwhile, the
// order goes to the one that has taken its place. After ErrUnread the order was given.
func (op Operator) order(ctx context.Context, resource, sql string, args ...any) (*fencing.Order, error) {
	id, err := op.db.Advance(ctx, resource, sql, args...)
	for n := 1; errors.Is(err, fencing.ErrRemoved) && n < attempts; n++ {
		id, err = op.db.Advance(ctx, resource, sql, args...)
	}
	if fence.Unanswered(err) { // whatever else it says
		err = fmt.Errorf("%w: %v", errOutcomeUnknown, err)
	}
	if err != nil {
		return nil, fmt.Errorf("give an order to resource %q: %w", resource, err)
	}
	if id == 0 {
		return nil, nil
	}
	given, err := op.given(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("order %d to resource %q: %w: %v", id, resource, ErrUnread, err) // err may be a refusal, and this was not refused
	}
	return given, nil
}

// given reads an order that has been given.
func (op Operator) given(ctx context.Context, id int64) (*fencing.Order, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	st, err := op.Orders(ctx, id-1)
	if err != nil {
		return nil, err
	}
	for i := range st.Orders {
		if st.Orders[i].ID == id {
			return &st.Orders[i], nil
		}
	}
	return nil, errors.New("it is gone: was the database replaced?")
}
