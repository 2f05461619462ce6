// Package logqueue writes log lines in the background. Whoever logs holds locks and serves others, and
// must not wait for a terminal that is stopped, or for a reader of a pipe that hangs.
package logqueue

import (
	"errors"
	"io"
	"sync"
	"syscall"
	"time"
)

// MaxQueued bounds, in bytes, the lines that wait to be written.
const MaxQueued = 1 << 20

// ErrExpired means that a line was not queued, because there was no room for it until Expire has said
// that there will be none.
var ErrExpired = errors.New("the log accepts no lines")

// ErrStalled means that the log has not accepted its last lines in time.
var ErrStalled = errors.New("the log has not accepted its last lines")

// againAfter is the time until a Write to a full disk is tried again.
const againAfter = time.Second

// Queue writes lines to one writer, in the order in which they come.
type Queue struct {
	w       io.Writer
	lost    func(lines int) []byte
	broken  func(error)
	closing chan struct{} // closed by Close
	done    chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	changed sync.Cond // one of the following has
	queued  []byte
	dropped int // lines that were not reported yet
	expired bool
	closed  bool
}

// New returns a Queue that writes to w, one or several whole lines at a time. lost makes the line that says how many
// lines had no room. broken is called with the error of each Write that has failed; it must not log. If the disk is
// full, what has not been written is tried again until there is room. After any other error it is lost. Close must be
// called at the end.
func New(w io.Writer, lost func(lines int) []byte, broken func(error)) *Queue {
	q := &Queue{w: w, lost: lost, broken: broken, closing: make(chan struct{}), done: make(chan struct{})}
	q.changed.L = &q.mu
	go q.run()
	return q
}

// Lossy returns a writer of lines, each by one Write, that never waits. A line that there is no room
// for is counted.
func (q *Queue) Lossy() io.Writer { return writer(q.offer) }

// Complete returns a writer of lines, each by one Write, that waits until there is room. It fails with
// ErrExpired, but for that.
func (q *Queue) Complete() io.Writer { return writer(q.put) }

type writer func(line []byte) error

// Write implements io.Writer.
func (w writer) Write(line []byte) (int, error) {
	if err := w(line); err != nil {
		return 0, err
	}
	return len(line), nil
}

func (q *Queue) offer(line []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.fits(line) {
		q.dropped++
		return nil
	}
	q.add(line)
	return nil
}

func (q *Queue) put(line []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.fits(line) {
		if q.expired {
			return ErrExpired
		}
		q.changed.Wait()
	}
	q.add(line)
	return nil
}

// fits reports whether there is room. A line that is longer than all the room has it alone.
func (q *Queue) fits(line []byte) bool {
	return len(q.queued) == 0 || len(q.queued)+len(line) <= MaxQueued
}

func (q *Queue) add(line []byte) {
	q.queued = append(q.queued, line...)
	q.changed.Broadcast()
}

// Expire has no one wait for room any more after that time.
func (q *Queue) Expire(after time.Duration) {
	time.AfterFunc(after, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.expired = true
		q.changed.Broadcast()
	})
}

// Close writes what is queued, and waits for that for at most the given time. If the writer does not
// accept it until then, it returns ErrStalled, and the goroutine that writes ends with the process.
func (q *Queue) Close(within time.Duration) error {
	q.mu.Lock()
	if !q.closed {
		close(q.closing)
	}
	q.closed, q.expired = true, true
	q.changed.Broadcast()
	q.mu.Unlock()
	select {
	case <-q.done:
		return nil
	case <-time.After(within):
		return ErrStalled
	}
}

func (q *Queue) run() {
	defer close(q.done)
	var out []byte
	for {
		var more bool
		if out, more = q.take(out); !more {
			return
		}
		for rest := out; len(rest) > 0; {
			n, err := q.w.Write(rest)
			if err != nil {
				q.broken(err)
			}
			if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
				break
			}
			rest = rest[n:]
			q.pause()
		}
	}
}

// pause waits before a Write is tried again: not for long if the Queue is closed.
func (q *Queue) pause() {
	select {
	case <-time.After(againAfter):
	case <-q.closing:
		time.Sleep(againAfter / 20)
	}
}

// take waits for lines, and returns them. They may use the memory of spare. It reports false if the
// Queue is closed, and everything is written.
func (q *Queue) take(spare []byte) (lines []byte, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.queued) == 0 && q.dropped == 0 && !q.closed {
		q.changed.Wait()
	}
	lines, q.queued = q.queued, spare[:0]
	if q.dropped > 0 {
		lines = append(lines, q.lost(q.dropped)...)
		q.dropped = 0
	}
	q.changed.Broadcast()
	return lines, len(lines) > 0
}
