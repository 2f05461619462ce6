// Package crew finds out which connections of one worker wait for each other. If the
// backend of one session waits for a lock that another session of the same worker holds, it waits
// for the worker itself, and does not count as being at work. A backend that waits for a lock of
// anyone else does.
package crew

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/lockorder"
)

// Session is what a crew has to know of a session. The methods do not block.
type Session interface {
	// Poll returns the process id of the session's backend, 0 if it is not to be asked about now, and
	// whether the server, or the proxy, works for the client.
	Poll() (pid uint32, working bool)
	// SetStuck says whether the backend waits for the worker itself, as of the last poll.
	SetStuck(stuck bool)
	// Fence is that of the session's database.
	Fence() fencing.Fence
}

// A crew is the sessions of one worker at this proxy, whatever their resources. The proxy asks the
// database which backends wait for which, whenever one session of a crew waits for its
// server while another one does not.
type crew struct {
	key key

	mu       lockorder.Mutex[lockorder.Crew]
	sessions map[Session]struct{}

	several atomic.Bool // the crew has more than one session
	beats   atomic.Bool // a session of the crew has promised heartbeats
	polling atomic.Bool // a poll is due or under way, or ended less than pollPause ago
}

// Place is a session's place in its crew.
type Place struct {
	of      *Crews
	crew    *crew
	session Session
	limited bool // the session has a worker timeout
}

type key struct {
	database, user, worker string
	client                 netip.Addr
}

// Crews are all crews of a proxy. One goroutine polls those that are due.
type Crews struct {
	mu  lockorder.Mutex[lockorder.Crews]
	all map[key]*crew

	due  chan *Place // of sessions whose crews are to be polled
	stop context.CancelFunc
	done chan struct{}
}

const (
	// pollTimeout bounds one query to the database. pollPause is the least time between two
	// polls of one crew.
	pollTimeout = 2 * time.Second
	pollPause   = 100 * time.Millisecond
	// maxPolls bounds the number of polls at one time.
	maxPolls = 8
)

// New returns crews without sessions. Close ends their polls.
func New() *Crews {
	ctx, stop := context.WithCancel(context.Background())
	cs := &Crews{all: map[key]*crew{}, due: make(chan *Place, 1024), stop: stop, done: make(chan struct{})}
	go cs.run(ctx)
	return cs
}

// Close ends the polls and waits for them.
func (cs *Crews) Close() {
	cs.stop()
	<-cs.done
}

func (cs *Crews) run(ctx context.Context) {
	defer close(cs.done)
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxPolls)
	for {
		select {
		case p := <-cs.due:
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			wg.Go(func() {
				p.crew.poll(ctx, p.session.Fence())
				<-slots
				select {
				case <-time.After(pollPause):
				case <-ctx.Done():
				}
				p.crew.polling.Store(false)
			})
		case <-ctx.Done():
			return
		}
	}
}

// Join adds a session to its worker's crew.
func (cs *Crews) Join(x Session, c fencing.JoinRequest) *Place {
	k := key{c.Database, c.User, c.Worker, c.Client}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	w := cs.all[k]
	if w == nil {
		w = &crew{key: k, sessions: map[Session]struct{}{}}
		cs.all[k] = w
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions[x] = struct{}{}
	if c.Heartbeat > 0 {
		w.beats.Store(true)
	}
	w.several.Store(len(w.sessions) > 1)
	return &Place{of: cs, crew: w, session: x, limited: c.WorkerTimeout != 0}
}

// Leave removes the session from its crew. It may be called again. p may be nil.
func (p *Place) Leave() {
	if p == nil {
		return
	}
	cs, w := p.of, p.crew
	cs.mu.Lock()
	defer cs.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.sessions, p.session)
	w.several.Store(len(w.sessions) > 1)
	if len(w.sessions) == 0 && cs.all[w.key] == w {
		delete(cs.all, w.key)
	}
}

// RequestPoll has the crew polled soon, if that can show whether the session is at work. It does not wait.
func (p *Place) RequestPoll() {
	w := p.crew
	if !p.limited && !w.beats.Load() || !w.several.Load() || !w.polling.CompareAndSwap(false, true) {
		return
	}
	select {
	case p.of.due <- p:
	default:
		w.polling.Store(false) // too many crews are due: the next call tries again
	}
}

// poll finds out which sessions of the crew wait for the worker itself, and lets each know.
func (w *crew) poll(ctx context.Context, fence fencing.Fence) {
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
