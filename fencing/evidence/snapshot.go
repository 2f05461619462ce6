package evidence

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Xid is the 64-bit id of a transaction or subtransaction. 0 means that it is not known.
type Xid uint64

// Snapshot is a pg_snapshot: which transactions had ended when it was taken.
type Snapshot struct {
	// Xmin is the lowest id that was in progress: all below it had ended. Xmax is the first
	// id that had not ended, and above which none had.
	Xmin, Xmax Xid
	// Running are the ids of transactions between the two that were in progress, in order.
	// Those of subtransactions are not among them.
	Running []Xid
}

// ParseSnapshot reads the text of a pg_snapshot.
func ParseSnapshot(text string) (Snapshot, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return Snapshot{}, fmt.Errorf("snapshot %q does not have three parts", text)
	}
	var s Snapshot
	ids := parts[:2]
	if parts[2] != "" {
		ids = append(ids, strings.Split(parts[2], ",")...)
	}
	for i, id := range ids {
		n, err := strconv.ParseUint(id, 10, 64)
		if err != nil {
			return Snapshot{}, fmt.Errorf("snapshot %q: %w", text, err)
		}
		switch i {
		case 0:
			s.Xmin = Xid(n)
		case 1:
			s.Xmax = Xid(n)
		default:
			s.Running = append(s.Running, Xid(n))
		}
	}
	return s, nil
}

// Sight is what a snapshot says about a transaction that has committed.
type Sight uint8

const (
	// Ended: it had committed when the snapshot was taken.
	Ended Sight = iota
	// Open: it had not.
	Open
	// Unclear: it had, unless the id is that of a subtransaction of an older transaction
	// that was in progress. A snapshot does not list those.
	Unclear
)

// Sees returns what the snapshot says about a transaction that has committed by now.
func (s Snapshot) Sees(x Xid) Sight {
	_, listed := slices.BinarySearch(s.Running, x)
	switch {
	case x < s.EndedBelow():
		return Ended
	case x >= s.Xmax, listed:
		return Open
	default:
		return Unclear
	}
}

// EndedBelow returns an id below which Sees returns Ended for every transaction.
func (s Snapshot) EndedBelow() Xid {
	if len(s.Running) > 0 {
		return s.Running[0]
	}
	return s.Xmax
}
