package netloop

import (
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
)

// Loop notifies connections of what they can do. Both sides of a session belong to one
// loop, which then moves the bytes between them by itself.
type Loop interface {
	// Adopt takes a TCP or Unix connection over. conn must not be used any more, unless that fails: then it
	// is the caller's still, which closes it.
	Adopt(conn net.Conn) (Conn, error)

	// close ends the loop and waits for it. Its connections must be closed.
	close()
}

// Loops are the loops of a process. Whoever starts them closes them, after the
// connections that they adopted.
type Loops struct {
	all  []Loop
	next atomic.Uint32
}

// Start starts a loop for every two processors, because the rest of the process and often
// the database need processors too.
func Start() (*Loops, error) { return start(newLoop) }

func start(newLoop func() (Loop, error)) (*Loops, error) {
	ls := &Loops{}
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		l, err := newLoop()
		if err != nil {
			ls.Close()
			return nil, fmt.Errorf("start event loop: %w", err)
		}
		ls.all = append(ls.all, l)
	}
	return ls, nil
}

// Close ends the loops and waits for them.
func (ls *Loops) Close() {
	for _, l := range ls.all {
		l.close()
	}
}

// Pick returns a loop for a new connection, each in its turn.
func (ls *Loops) Pick() Loop { return ls.all[int(ls.next.Add(1))%len(ls.all)] }
