package proxy

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// A crew is the connections of one worker at this proxy, whatever their
// resources. A server that waits for a lock of another connection of the same
// worker works for nobody if the worker has stopped: it waits for the worker. So
// while one connection waits for its server and another one does not, the
// database is asked who waits for whom. A lock of anybody else is waited for
// like any other work of the server.
type crew struct {
	key crewKey

	mu       sync.Mutex
	sessions map[*session]struct{}

	several atomic.Bool // more than one session
	looking atomic.Bool // a look is under way, or was a moment ago
}

type crewKey struct {
	database, user, worker string
	client                 netip.Addr
}

// crews are all of a server, and the looks at them.
type crews struct {
	mu  sync.Mutex
	all map[crewKey]*crew

	due  chan *session // whose crew is to be looked at
	stop context.CancelFunc
	done chan struct{}
}

const (
	// pollTimeout bounds one question to the database, pollPause is the least
	// time between two about one crew.
	pollTimeout = 2 * time.Second
	pollPause   = 100 * time.Millisecond
	// maxPolls bounds the questions at once.
	maxPolls = 8
)

func newCrews() *crews {
	ctx, stop := context.WithCancel(context.Background())
	cs := &crews{all: map[crewKey]*crew{}, due: make(chan *session, 1024), stop: stop, done: make(chan struct{})}
	go cs.run(ctx)
	return cs
}

// close ends the looks and waits for them.
func (cs *crews) close() {
	cs.stop()
	<-cs.done
}

func (cs *crews) run(ctx context.Context) {
	defer close(cs.done)
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxPolls)
	for {
		select {
		case x := <-cs.due:
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			wg.Go(func() {
				x.member.crew.poll(ctx, x.member.cand.Fence())
				<-slots
				select {
				case <-time.After(pollPause):
				case <-ctx.Done():
				}
				x.member.crew.looking.Store(false)
			})
		case <-ctx.Done():
			return
		}
	}
}

// join makes x one of its worker's crew.
func (cs *crews) join(x *session, c fencing.JoinRequest) {
	key := crewKey{c.Database, c.User, c.Worker, c.Client}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	w := cs.all[key]
	if w == nil {
		w = &crew{key: key, sessions: map[*session]struct{}{}}
		cs.all[key] = w
	}
	x.member.crew = w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions[x] = struct{}{}
	w.several.Store(len(w.sessions) > 1)
}

func (cs *crews) leave(x *session) {
	w := x.member.crew
	if w == nil {
		return
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.sessions, x)
	w.several.Store(len(w.sessions) > 1)
	if len(w.sessions) == 0 {
		delete(cs.all, w.key)
	}
}

// ask has x's crew looked at, soon. It does not wait.
func (cs *crews) ask(x *session) {
	if x.life.phase() == phaseStarting || x.start.own.workerTimeout == 0 || !x.member.crew.several.Load() || !x.member.crew.looking.CompareAndSwap(false, true) {
		return
	}
	select {
	case cs.due <- x:
	default:
		x.member.crew.looking.Store(false) // so many are due that this one waits for the next call
	}
}

// poll finds out which of the sessions wait for the worker itself.
func (w *crew) poll(ctx context.Context, fence fencing.Fence) {
	var waiting, holding []uint32
	byPID := map[uint32]*session{}
	w.mu.Lock()
	for x := range w.sessions {
		switch {
		case x.life.phase() == phaseStarting, x.backend.pid == 0:
		case x.active.works(x.client, &x.active.takenByCrew):
			waiting, byPID[x.backend.pid] = append(waiting, x.backend.pid), x
		default:
			holding = append(holding, x.backend.pid)
		}
	}
	w.mu.Unlock()
	stuck := map[uint32]bool{}
	if len(waiting) > 0 && len(holding) > 0 {
		ctx, cancel := context.WithTimeout(ctx, pollTimeout)
		pids, err := fence.WaitFor(ctx, waiting, holding)
		cancel()
		if err != nil {
			return // what was known stands; the next look may learn more
		}
		for _, pid := range pids {
			stuck[pid] = true
		}
	}
	for pid, x := range byPID {
		x.active.stuck.Store(stuck[pid])
	}
}
