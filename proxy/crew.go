package proxy

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/lockorder"
)

// A crew is the sessions of one worker at this proxy, whatever their resources. If the
// backend of one session waits for a lock that another session of the crew holds, it waits
// for the worker itself, and does not count as being at work. The proxy therefore asks the
// database which backends wait for which, whenever one session of a crew waits for its
// server while another one does not. A backend that waits for a lock of anyone else does
// count as being at work.
type crew struct {
	key crewKey

	mu       lockorder.Mutex[lockorder.Crew]
	sessions map[*session]struct{}

	several atomic.Bool // the crew has more than one session
	beats   atomic.Bool // a session of the crew has promised heartbeats
	polling atomic.Bool // a poll is due or under way, or ended less than pollPause ago
}

type crewKey struct {
	database, user, worker string
	client                 netip.Addr
}

// crews are all crews of a Server. One goroutine polls those that are due.
type crews struct {
	mu  lockorder.Mutex[lockorder.Crews]
	all map[crewKey]*crew

	due  chan *session // sessions whose crews are to be polled
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

func newCrews() *crews {
	ctx, stop := context.WithCancel(context.Background())
	cs := &crews{all: map[crewKey]*crew{}, due: make(chan *session, 1024), stop: stop, done: make(chan struct{})}
	go cs.run(ctx)
	return cs
}

// close ends the polls and waits for them.
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
				x.member.crew.poll(ctx, x.member.candidacy().Fence())
				<-slots
				select {
				case <-time.After(pollPause):
				case <-ctx.Done():
				}
				x.member.crew.polling.Store(false)
			})
		case <-ctx.Done():
			return
		}
	}
}

// join adds x to its worker's crew.
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
	if c.Heartbeat > 0 {
		w.beats.Store(true)
	}
	w.several.Store(len(w.sessions) > 1)
}

// leave removes x from its crew, if it is in one.
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

// requestPoll has x's crew polled soon, if that can show whether x is at work. It does not wait.
func (cs *crews) requestPoll(x *session) {
	watched := x.start.Own.WorkerTimeout != 0 || x.member.crew.beats.Load()
	if !x.canBePolled() || !watched || !x.member.crew.several.Load() || !x.member.crew.polling.CompareAndSwap(false, true) {
		return
	}
	select {
	case cs.due <- x:
	default:
		x.member.crew.polling.Store(false) // too many crews are due: the next call tries again
	}
}

// canBePolled reports whether the session's startup is over and its candidacy is set. A
// shutdown can end the startup before the session has joined.
func (x *session) canBePolled() bool {
	return x.life.phase() != phaseStarting && x.member.state.Load() != outside
}

// poll finds out which sessions of the crew wait for the worker itself, and records that in
// their activity.
func (w *crew) poll(ctx context.Context, fence fencing.Fence) {
	var waiting, holding []uint32
	byPID := map[uint32]*session{}
	w.mu.Lock()
	for x := range w.sessions {
		switch {
		case !x.canBePolled(), x.backend.PID == 0:
		case x.active.isWorking(x.client, &x.active.takenByCrew):
			waiting, byPID[x.backend.PID] = append(waiting, x.backend.PID), x
		default:
			holding = append(holding, x.backend.PID)
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
		x.active.stuck.Store(stuck[pid])
	}
}
