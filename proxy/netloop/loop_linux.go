package netloop

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Loop tells sockets what they can do. One goroutine waits for all of them and
// serves those whose readers attend, one after the other.
type Loop struct {
	epoll, wake int // descriptors
	done        chan struct{}

	mu struct {
		sync.RWMutex
		sockets map[int32]*Conn
		last    int32 // key
	}
}

// wakeKey is the key of the event that ends the loop.
const wakeKey = 0

// loopEvents bounds what one wait returns.
const loopEvents = 128

func newLoop() (*Loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, os.NewSyscallError("eventfd", err)
	}
	l := &Loop{epoll: epoll, wake: wake, done: make(chan struct{})}
	l.mu.sockets = map[int32]*Conn{}
	if err := l.watch(wake, wakeKey, unix.EPOLLIN); err != nil {
		_ = unix.Close(epoll)
		_ = unix.Close(wake)
		return nil, err
	}
	go l.run()
	return l, nil
}

func (l *Loop) watch(fd int, key int32, events uint32) error {
	err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: key})
	return os.NewSyscallError("epoll_ctl", err)
}

// add watches a socket until it is removed, and returns its key. That is not the
// descriptor: an event that was fetched before the socket was closed would find
// the next one of that number.
func (l *Loop) add(fd int, s *Conn) (key int32, err error) {
	l.mu.Lock()
	for taken := true; taken; _, taken = l.mu.sockets[l.mu.last] {
		l.mu.last = max(l.mu.last+1, wakeKey+1) // round again behind the largest
	}
	key = l.mu.last
	l.mu.sockets[key] = s
	l.mu.Unlock()
	// Edges suffice: who is told that a socket is readable reads until it is not.
	if err := l.watch(fd, key, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLET&0xffffffff); err != nil {
		l.remove(key)
		return 0, err
	}
	return key, nil
}

// remove forgets a socket whose descriptor is about to be closed, which ends
// the watching.
func (l *Loop) remove(key int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mu.sockets, key)
}

func (l *Loop) run() {
	defer close(l.done)
	events := make([]unix.EpollEvent, loopEvents)
	for {
		n, err := unix.EpollWait(l.epoll, events, -1)
		if err != nil && err != unix.EINTR {
			panic(fmt.Sprintf("epoll_wait: %v", err)) // of a descriptor of ours, that we have not closed
		}
		for _, e := range events[:max(n, 0)] {
			if e.Fd == wakeKey {
				return
			}
			l.mu.RLock()
			s := l.mu.sockets[e.Fd]
			l.mu.RUnlock()
			if s != nil {
				s.ready(e.Events)
			}
		}
	}
}

// Close ends the loop and waits for it. Its sockets must be closed.
func (l *Loop) close() {
	one := binary.NativeEndian.AppendUint64(nil, 1)
	if _, err := unix.Write(l.wake, one); err != nil {
		panic(fmt.Sprintf("write to eventfd: %v", err))
	}
	<-l.done
	_ = unix.Close(l.wake)
	_ = unix.Close(l.epoll)
}

// Loops spreads sockets over some loops.
type Loops struct {
	all  []*Loop
	next atomic.Uint32
}

// Start starts a loop for every two processors: the servers' processes, or
// the rest of ours, need some too.
func Start() (*Loops, error) {
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

func (ls *Loops) Close() {
	for _, l := range ls.all {
		l.close()
	}
}

// Pick returns a loop for a session: both of its sockets belong to one.
func (ls *Loops) Pick() *Loop { return ls.all[int(ls.next.Add(1))%len(ls.all)] }

// Adopt makes a socket of a connection. conn is closed; on failure too.
func (l *Loop) Adopt(conn net.Conn) (*Conn, error) { return newSocket(l, conn) }
