package netloop

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// epollLoop notifies connections of what they can do. One goroutine waits for all of
// them, and calls the Readers of those that were left to it by OnReadable, one
// after the other. close ends it.
type epollLoop struct {
	epoll, wake int           // descriptors
	done        chan struct{} // closed when the goroutine has ended

	mu struct {
		sync.RWMutex
		conns map[int32]*epollConn
		last  int32 // key
	}
}

// wakeKey is the key of the event that ends the loop.
const wakeKey = 0

// loopEvents bounds what one wait returns.
const loopEvents = 128

func newEpollLoop() (*epollLoop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, os.NewSyscallError("eventfd", err)
	}
	l := &epollLoop{epoll: epoll, wake: wake, done: make(chan struct{})}
	l.mu.conns = map[int32]*epollConn{}
	if err := l.watch(wake, wakeKey, unix.EPOLLIN); err != nil {
		_ = unix.Close(epoll)
		_ = unix.Close(wake)
		return nil, err
	}
	go l.run()
	return l, nil
}

func (l *epollLoop) watch(fd int, key int32, events uint32) error {
	err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: key})
	return os.NewSyscallError("epoll_ctl", err)
}

// add watches a connection until it is removed, and returns its key. That is not
// the descriptor: an event that was fetched before it was closed would find the
// next one of that number.
func (l *epollLoop) add(fd int, c *epollConn) (key int32, err error) {
	l.mu.Lock()
	for taken := true; taken; _, taken = l.mu.conns[l.mu.last] {
		l.mu.last = max(l.mu.last+1, wakeKey+1) // round again after the largest
	}
	key = l.mu.last
	l.mu.conns[key] = c
	l.mu.Unlock()
	// Edges suffice: whoever is notified that a connection is readable reads until it is not.
	if err := l.watch(fd, key, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLET&0xffffffff); err != nil {
		l.remove(fd, key)
		return 0, err
	}
	return key, nil
}

// remove forgets a connection and ends the watching. To close the descriptor would not end it if another
// process has a copy.
func (l *epollLoop) remove(fd int, key int32) {
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil) // which fails if it is not watched
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mu.conns, key)
}

// timeSlice is how long the loop continues before it lets the scheduler run others. A goroutine that runs
// for 10 ms is preempted by a signal, and its processor is taken away in its next system call. Then the
// runtime's monitor looks every 20 microseconds, for milliseconds, whether it can take more (sysmon and
// retake in runtime/proc.go).
const timeSlice = 5 * time.Millisecond

func (l *epollLoop) run() {
	defer close(l.done)
	events := make([]unix.EpollEvent, loopEvents)
	began := time.Now()
	for {
		if now := time.Now(); now.Sub(began) > timeSlice {
			runtime.Gosched()
			began = now
		}
		n, err := unix.EpollWait(l.epoll, events, -1)
		if err != nil && err != unix.EINTR {
			panic(fmt.Sprintf("epoll_wait: %v", err)) // the loop's own descriptor, which is still open
		}
		for _, e := range events[:max(n, 0)] {
			if e.Fd == wakeKey {
				return
			}
			l.mu.RLock()
			c := l.mu.conns[e.Fd]
			l.mu.RUnlock()
			if c != nil {
				c.ready(e.Events)
			}
		}
	}
}

// close implements Loop.
func (l *epollLoop) close() {
	one := binary.NativeEndian.AppendUint64(nil, 1)
	if _, err := unix.Write(l.wake, one); err != nil {
		panic(fmt.Sprintf("write to eventfd: %v", err))
	}
	<-l.done
	_ = unix.Close(l.wake)
	_ = unix.Close(l.epoll)
}

// Adopt implements Loop.
func (l *epollLoop) Adopt(conn net.Conn) (Conn, error) {
	s, err := streamOf(conn)
	if err != nil {
		return nil, err
	}
	c, err := newEpollConn(l, s)
	if err != nil {
		return nil, fmt.Errorf("take connection over: %w", err)
	}
	return c, nil
}
