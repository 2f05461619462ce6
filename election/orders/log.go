// Package orders knows which orders of operators a proxy has seen of a database, and so which are new there, and which
// a failover or a restore has lost. It is pure, but for the reading that it asks for.
package orders

import (
	"math"
	"slices"

	"github.com/fencepost/fencepost/fencing"
)

// mostRecent is how many orders are remembered, to name those that are lost.
const mostRecent = 100

// Log is what was seen of the orders of one database. The zero value has seen nothing. It outlasts the candidacies,
// because a failover may end them all before it shows what it has lost.
type Log struct {
	last   int64 // the highest id
	known  bool  // last is
	recent []fencing.Order
}

// News is what a reading has shown.
type News struct {
	fencing.Ordered // as it was read, without its orders
	// New are the orders that were not seen before.
	New []fencing.Order
	// Lost are the orders that were seen, and that the database does not have any more.
	Lost []fencing.Order
	// LostUnknown is the newest order that was seen if it is lost and nothing else is known of it; otherwise 0.
	LostUnknown int64
	// Missed means that there may be orders that are not known.
	Missed bool
}

// Read reads the orders that are new, and looks whether the newest one that was seen is still there. read returns
// what the database says, with the orders above an id. After an error, nothing has changed.
func (l *Log) Read(read func(after int64) (fencing.Ordered, error)) (News, error) {
	after := int64(math.MaxInt64)
	if l.known {
		after = max(l.last-1, 0)
	}
	st, err := read(after)
	if err != nil {
		return News{}, err
	}
	gone := l.last > 0 && !slices.ContainsFunc(st.Orders, l.isNewest)
	n := News{Ordered: st, Missed: gone || !l.known}
	n.Orders = nil
	there := st.Orders
	if gone {
		if there, err = l.readRemembered(read); err != nil {
			return News{}, err
		}
		l.findLost(there, &n)
	}
	for _, o := range there {
		if !gone && o.ID <= l.last || gone && slices.ContainsFunc(l.recent, same(o)) {
			continue
		}
		n.New = append(n.New, o)
	}
	l.recent = append(l.recent, n.New...)
	l.recent = l.recent[max(0, len(l.recent)-mostRecent):]
	l.last, l.known = st.LastOrder, true
	return n, nil
}

// readRemembered reads the orders since the oldest one that is remembered.
func (l *Log) readRemembered(read func(after int64) (fencing.Ordered, error)) ([]fencing.Order, error) {
	after := l.last - 1
	if len(l.recent) > 0 {
		after = l.recent[0].ID - 1
	}
	st, err := read(after)
	return st.Orders, err
}

// findLost forgets those remembered orders that are not there, and adds them to n.
func (l *Log) findLost(there []fencing.Order, n *News) {
	var kept []fencing.Order
	for _, o := range l.recent {
		if slices.ContainsFunc(there, same(o)) {
			kept = append(kept, o)
		} else {
			n.Lost = append(n.Lost, o)
		}
	}
	if len(n.Lost) == 0 {
		n.LostUnknown = l.last
	}
	l.recent = kept
}

// isNewest reports whether o is the newest order that was seen. After an asynchronous failover, another order may have
// its id.
func (l *Log) isNewest(o fencing.Order) bool {
	n := len(l.recent)
	return o.ID == l.last && (n == 0 || l.recent[n-1].ID != o.ID || l.recent[n-1].AskedAt.Equal(o.AskedAt))
}

// same returns whether an order is o. After a failover, another one may have its id.
func same(o fencing.Order) func(fencing.Order) bool {
	return func(other fencing.Order) bool { return other.ID == o.ID && other.AskedAt.Equal(o.AskedAt) }
}
