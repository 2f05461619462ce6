package orders_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/orders"
	"github.com/fencepost/fencepost/fencing"
)

// database is a database with these orders.
type database []fencing.Order

func (d database) read(after int64) (st fencing.Ordered, _ error) {
	for _, o := range d {
		st.LastOrder = o.ID
		if o.ID > after {
			st.Orders = append(st.Orders, o)
		}
	}
	return st, nil
}

// at returns an order that was given at this second.
func at(second, id int64) fencing.Order {
	return fencing.Order{ID: id, AskedAt: time.Unix(second, 0)}
}

// TestWhatIsNewAndWhatIsLost reads one state of a database after the other. After a failover, new orders get the ids of
// those that it has lost.
func TestWhatIsNewAndWhatIsLost(t *testing.T) {
	t.Parallel()
	var l orders.Log
	for _, c := range []struct {
		name         string
		now          database
		fresh, lost  []int64
		unknown      int64
		missed, fail bool
	}{
		{name: "the first look", now: database{at(1, 4)}, missed: true},
		{name: "nothing new", now: database{at(1, 4)}},
		{name: "two orders", now: database{at(1, 4), at(2, 5), at(2, 6)}, fresh: []int64{5, 6}},
		{name: "an answer is missing", now: database{at(1, 4), at(2, 5), at(2, 6), at(3, 7)}, fail: true},
		{name: "nothing new again", now: database{at(1, 4), at(2, 5), at(2, 6)}},
		{name: "another order of the last id", now: database{at(1, 4), at(2, 5), at(4, 6)}, fresh: []int64{6}, lost: []int64{6}, missed: true},
		{name: "which stays", now: database{at(1, 4), at(2, 5), at(4, 6)}},
		{name: "others of both ids", now: database{at(1, 4), at(5, 5), at(5, 6)}, fresh: []int64{5, 6}, lost: []int64{5, 6}, missed: true},
		{name: "an older state", now: database{at(1, 4)}, lost: []int64{5, 6}, missed: true},
		{name: "one older than what is remembered", now: database{at(0, 3)}, unknown: 4, missed: true},
	} {
		read := c.now.read
		if c.fail {
			read = func(int64) (fencing.Ordered, error) { return fencing.Ordered{}, errors.New("no answer") }
		}
		n, err := l.Read(read)
		if (err != nil) != c.fail || !slices.Equal(ids(n.New), c.fresh) || !slices.Equal(ids(n.Lost), c.lost) || n.LostUnknown != c.unknown || n.Missed != c.missed {
			t.Errorf("%s: %+v, %v; want %+v", c.name, n, err, c)
		}
	}
}

func ids(all []fencing.Order) (ids []int64) {
	for _, o := range all {
		ids = append(ids, o.ID)
	}
	return ids
}
