package logqueue

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const patience = time.Minute

func lost(n int) []byte { return fmt.Appendf(nil, "%d lost\n", n) }

func unbroken(t *testing.T) func(error) {
	return func(err error) { t.Errorf("Write: %v", err) }
}

// stalled is a writer that accepts nothing until it continues. The test waits until it was called.
type stalled struct {
	called, goOn chan struct{}
	once         sync.Once

	mu      sync.Mutex
	written strings.Builder
}

func newStalled() *stalled { return &stalled{called: make(chan struct{}), goOn: make(chan struct{})} }

// Write implements io.Writer.
func (s *stalled) Write(b []byte) (int, error) {
	s.once.Do(func() { close(s.called) })
	<-s.goOn
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.Write(b)
}

func (s *stalled) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.String()
}

// write writes a line that a Lossy or Complete writer accepts.
func write(t *testing.T, w io.Writer, line string) {
	t.Helper()
	if n, err := io.WriteString(w, line); err != nil || n != len(line) {
		t.Fatalf("Write: %d, %v", n, err)
	}
}

// TestNoOneWaitsForAStalledWriter but those whose lines must not be lost.
func TestNoOneWaitsForAStalledWriter(t *testing.T) {
	t.Parallel()
	w := newStalled()
	q := New(w, lost, unbroken(t))
	write(t, q.Lossy(), "first\n")
	<-w.called
	long := strings.Repeat("x", MaxQueued-1) + "\n"
	for _, line := range []string{long, "a\n", "b\n"} {
		write(t, q.Lossy(), line)
	}
	complete := make(chan error)
	go func() {
		_, err := io.WriteString(q.Complete(), "audit\n")
		complete <- err
	}()
	select {
	case err := <-complete:
		t.Fatalf("a line found room where there was none: %v", err)
	case <-time.After(50 * time.Millisecond): // it can only be too early
	}
	close(w.goOn)
	if err := <-complete; err != nil {
		t.Fatal(err)
	}
	if err := q.Close(patience); err != nil {
		t.Fatal(err)
	}
	if got, want := w.String(), "first\n"+long+"2 lost\naudit\n"; got != want {
		t.Errorf("%d bytes, the last of them %q; want %d", len(got), got[len(got)-30:], len(want))
	}
}

// TestTheEndIsNotHeldUp by a writer that stays stalled.
func TestTheEndIsNotHeldUp(t *testing.T) {
	t.Parallel()
	w := newStalled()
	defer close(w.goOn)
	q := New(w, lost, unbroken(t))
	write(t, q.Lossy(), "first\n")
	<-w.called
	write(t, q.Complete(), strings.Repeat("x", MaxQueued-1)+"\n")
	q.Expire(time.Millisecond)
	if _, err := io.WriteString(q.Complete(), "audit\n"); !errors.Is(err, ErrExpired) {
		t.Errorf("a line that finds no room: %v", err)
	}
	if err := q.Close(time.Millisecond); err == nil {
		t.Error("Close says that all was written")
	}
}

func TestAWriteThatFailsIsReported(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	q := New(w, lost, func(err error) { told <- err })
	write(t, q.Lossy(), "nobody reads this\n")
	if err := <-told; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("told %v", err)
	}
	if err := q.Close(patience); err != nil {
		t.Error(err)
	}
}

// full is a disk that is full at first, in the middle of a line.
type full struct {
	left    []int // how much the next calls write
	written strings.Builder
}

// Write implements io.Writer.
func (f *full) Write(b []byte) (int, error) {
	if len(f.left) == 0 {
		return f.written.Write(b)
	}
	n := min(f.left[0], len(b))
	f.left = f.left[1:]
	f.written.Write(b[:n])
	return n, syscall.ENOSPC
}

func TestNothingIsLostWhileTheDiskIsFull(t *testing.T) {
	t.Parallel()
	told := make(chan error, 4)
	w := &full{left: []int{5, 0, 0, 1}}
	q := New(w, lost, func(err error) { told <- err })
	write(t, q.Complete(), "the first line\n")
	for range 2 {
		if err := <-told; !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("told %v", err)
		}
	}
	write(t, q.Complete(), "the second\n")
	if err := q.Close(patience); err != nil {
		t.Fatal(err)
	}
	if got, want := w.written.String(), "the first line\nthe second\n"; got != want {
		t.Errorf("written: %q, want %q", got, want)
	}
}
