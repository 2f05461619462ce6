package disk

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// opened makes the directory of a node and opens it.
func opened(t *testing.T) *Disk {
	t.Helper()
	dir := t.TempDir()
	if err := Create(dir, Identity{Cluster: "c", Node: "n", Disk: "d"}, nil); err != nil {
		t.Fatal(err)
	}
	d, err := Open(dir, "n")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A write that does not end is a problem, and one that was waited for long enough stalls the node.
func TestAWriteThatDoesNotEndIsAProblem(t *testing.T) {
	t.Parallel()
	d := opened(t)
	other, err := d.db.Begin(true) // nobody else can write
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { written <- d.SetUint64([]byte("term"), 7) }()
	for begun := time.Now(); !d.Stalled(); time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatal("it is not noticed")
		}
	}
	if err := d.Problem(); err == nil || !strings.Contains(err.Error(), "nothing was written for") {
		t.Errorf("the problem is %v", err)
	}
	if err := other.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
	if err := d.Problem(); err != nil || d.Stalled() {
		t.Errorf("after the write the problem is %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// A disk that ends each write, and is slower than any request can wait, is stalled. It stays so for long
// enough that another node is elected.
func TestADiskWhoseWritesAreSlowIsStalled(t *testing.T) {
	t.Parallel()
	d := opened(t)
	t.Cleanup(func() { _ = d.Close() })
	write := func(wait time.Duration) {
		t.Helper()
		other, err := d.db.Begin(true)
		if err != nil {
			t.Fatal(err)
		}
		written := make(chan error, 1)
		go func() { written <- d.Set([]byte("key"), []byte("value")) }()
		time.Sleep(wait)
		if err := errors.Join(other.Rollback(), <-written); err != nil {
			t.Fatal(err)
		}
	}
	const slow = stallAfter * 5 / 4
	write(slow)
	for begun := time.Now(); ; {
		write(0)
		last := time.Now()
		write(slow)
		problem, stalled := d.Problem(), d.Stalled()
		if time.Since(last) < slow+stallFor {
			if !stalled || problem == nil || !strings.Contains(problem.Error(), "writes are too slow") {
				t.Errorf("it is stalled: %v, its problem is %v", stalled, problem)
			}
			break
		}
		if time.Since(begun) > 5*time.Minute { // the test looks too late each time
			t.Fatal("this machine is too slow")
		}
	}
	for begun := time.Now(); d.Stalled() || d.Problem() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatal("it stays stalled")
		}
	}
}

// One slow write may be chance.
func TestOneSlowWriteStallsNothing(t *testing.T) {
	t.Parallel()
	var s slowness
	now := time.Now()
	for _, at := range []time.Time{now, now.Add(slowAgain)} {
		if s.note(at, 2*stallAfter); !s.until.IsZero() {
			t.Fatal("it counts as stalled")
		}
	}
	now = now.Add(2*slowAgain - time.Second)
	s.note(now, 0)
	if s.note(now, 2*stallAfter); s.until != now.Add(stallFor) {
		t.Errorf("after the next one it counts as stalled until %v", s.until)
	}
}
