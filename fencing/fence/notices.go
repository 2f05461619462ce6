package fence

import (
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
)

// noticesKey is the key under which a connection keeps the warnings of its last
// statement.
const noticesKey = "fencepost.notices"

// keepNotice stores a server warning with its connection. It runs in the goroutine that
// uses the connection.
func keepNotice(c *pgconn.PgConn, n *pgconn.Notice) {
	if progress, ok := c.CustomData()[progressKey].(*drainProgress); ok && progress.take(n) {
		return
	}
	kept, _ := c.CustomData()[noticesKey].([]*pgconn.Notice)
	c.CustomData()[noticesKey] = append(kept, n)
}

func forgetNotices(c *pgconn.PgConn) { delete(c.CustomData(), noticesKey) }

// drainProgress is what fencepost.drain has reported so far. The goroutine that uses the connection writes it, and a
// watch reads it.
type drainProgress struct {
	began chan fencing.Epoch // the epoch that ends, when the grant begins to wait; has room for one

	mu    sync.Mutex
	ended []endedBackend
}

// progressKey is the key of the drainProgress among the data of a connection.
const progressKey = "fencepost.progress"

// take processes a notice if fencepost.drain has sent it, and reports whether it has.
func (p *drainProgress) take(n *pgconn.Notice) bool {
	switch n.Message {
	case drainNotice:
		epoch, err := strconv.ParseInt(n.Detail, 10, 64)
		if err != nil {
			return false
		}
		select {
		case p.began <- fencing.Epoch(epoch):
		default: // the watch knows
		}
		return true
	case endedNotice:
		b := endedBackend{at: time.Now()}
		if json.Unmarshal([]byte(n.Detail), &b) != nil {
			return false
		}
		p.mu.Lock()
		p.ended = append(p.ended, b)
		p.mu.Unlock()
		return true
	}
	return false
}

// endedFor returns the process ids of the backends that were terminated at least so long ago.
func (p *drainProgress) endedFor(d time.Duration) (pids []int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.ended {
		if time.Since(b.at) >= d {
			pids = append(pids, b.PID)
		}
	}
	return pids
}

// endedBackend is a registered backend that a grant has terminated.
type endedBackend struct {
	PID         int32     `json:"pid"`
	User        string    `json:"user"`
	Application string    `json:"application"`
	State       string    `json:"state"`
	at          time.Time // when it was terminated
}

// drainNotice is how fencepost.drain says that it waits for registered backends. The DETAIL is the epoch that ends.
const drainNotice = "fencepost waits for registered backends"

// endedNotice is how fencepost.drain reports a backend that it has terminated.
const endedNotice = "fencepost has terminated a registered backend"

// isUnconfirmed reports whether the standbys that the last commit waited for did not
// confirm it. It recognises the warning by the server routine that raised it, because
// the warning's text is translated and a user's own WARNING has the same SQLSTATE.
func isUnconfirmed(c *pgconn.PgConn) bool {
	kept, _ := c.CustomData()[noticesKey].([]*pgconn.Notice)
	for _, n := range kept {
		if n.Routine == "SyncRepWaitForLSN" {
			return true
		}
	}
	return false
}
