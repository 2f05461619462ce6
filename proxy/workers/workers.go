// Package workers finds out which connections of one worker wait for each other. If the
// backend of one session waits for a lock that another session of the same worker holds, it waits
// for the worker itself, and does not count as being at work. A backend that waits for a lock of
// anyone else does.
package workers

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/lockorder"
)

// Session is one connection of a worker. The methods do not block.
type Session interface {
	// Poll returns the process id of the session's backend, 0 if it is not to be asked about now, and
	// whether the server, or the proxy, works for the client.
	Poll() (pid uint32, working bool)
	// SetStuck says whether the backend waits for the worker itself, as of the last poll.
	SetStuck(stuck bool)
	// Fence is that of the session's database.
	Fence() fencing.Fence
}

// A worker has the sessions of one worker at this proxy, whatever their resources. The proxy asks the
// database which backends wait for which, whenever one session of a worker waits for its
// server while another one does not.
type worker struct {
	key key

	mu       lockorder.Mutex[lockorder.Worker]
	sessions map[Session]struct{}

	several atomic.Bool // the worker has more than one session
	beats   atomic.Bool // a session of the worker has promised heartbeats
	polling atomic.Bool // a poll is due or under way, or ended less than pollPause ago
}

// Place is a session's place among those of its worker.
type Place struct {
	of      *Workers
	worker  *worker
	session Session
	limited bool // the session has a worker timeout
}

type key struct {
	database, user, worker string
	client                 netip.Addr
}

// Workers has all workers of a proxy. One goroutine polls those that are due.
type Workers struct {
	mu  lockorder.Mutex[lockorder.Workers]
	all map[key]*worker

	due  chan *Place // of sessions whose workers are to be polled
	stop context.CancelFunc
	done chan struct{}
}

const (
	// pollTimeout bounds one query to the database. pollPause is the least time between two
	// polls of one worker.
	pollTimeout = 2 * time.Second
	pollPause   = 100 * time.Millisecond
	// maxPolls bounds the number of polls at one time.
	maxPolls = 8
)

// New returns workers without sessions. Close ends their polls.
func New() *Workers {
	ctx, stop := context.WithCancel(context.Background())
	ws := &Workers{all: map[key]*worker{}, due: make(chan *Place, 1024), stop: stop, done: make(chan struct{})}
	go ws.run(ctx)
	return ws
}

// Close ends the polls and waits for them.
func (ws *Workers) Close() {
	ws.stop()
	<-ws.done
}

func (ws *Workers) run(ctx context.Context) {
	defer close(ws.done)
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxPolls)
	for {
		select {
		case p := <-ws.due:
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			wg.Go(func() {
				p.worker.poll(ctx, p.session.Fence())
				<-slots
				select {
				case <-time.After(pollPause):
				case <-ctx.Done():
				}
				p.worker.polling.Store(false)
			})
		case <-ctx.Done():
			return
		}
	}
}

// Join adds a session to those of its worker.
func (ws *Workers) Join(x Session, c fencing.JoinRequest) *Place {
	k := key{c.Database, c.User, c.Worker, c.Client}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.all[k]
	if w == nil {
		w = &worker{key: k, sessions: map[Session]struct{}{}}
		ws.all[k] = w
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions[x] = struct{}{}
	if c.Heartbeat > 0 {
		w.beats.Store(true)
	}
	w.several.Store(len(w.sessions) > 1)
	return &Place{of: ws, worker: w, session: x, limited: c.WorkerTimeout != 0}
}

// Leave removes the session from those of its worker. It may be called again. p may be nil.
func (p *Place) Leave() {
	if p == nil {
		return
	}
	ws, w := p.of, p.worker
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.sessions, p.session)
	w.several.Store(len(w.sessions) > 1)
	if len(w.sessions) == 0 && ws.all[w.key] == w {
		delete(ws.all, w.key)
	}
}

// RequestPoll has the worker polled soon, if that can show whether the session is at work. It does not wait.
func (p *Place) RequestPoll() {
	w := p.worker
	if !p.limited && !w.beats.Load() || !w.several.Load() || !w.polling.CompareAndSwap(false, true) {
		return
	}
	select {
	case p.of.due <- p:
	default:
		w.polling.Store(false) // too many workers are due: the next call tries again
	}
}

// poll finds out which sessions of the worker wait for the worker itself, and lets each know.
func (w *worker) poll(ctx context.Context, fence fencing.Fence) {
	var waiting, holding []uint32
	byPID := map[uint32]Session{}
	w.mu.Lock()
	for x := range w.sessions {
		switch pid, working := x.Poll(); {
		case pid == 0:
		case working:
			waiting, byPID[pid] = append(waiting, pid), x
		default:
			holding = append(holding, pid)
		}
	}
	w.mu.Unlock()
	stuck := map[uint32]bool{}
	if len(waiting) > 0 && len(holding) > 0 {
		ctx, cancel := context.WithTimeout(ctx, pollTimeout)
		pids, err := fence.WaitFor(ctx, waiting, holding)
		cancel()
		if err != nil {
			return // keep the last result; the next poll may get another one
		}
		for _, pid := range pids {
			stuck[pid] = true
		}
	}
	for pid, x := range byPID {
		x.SetStuck(stuck[pid])
	}
}
