package disk

import (
	"strings"
	"testing"
	"time"
)

// A write that does not end is a problem, and one that was waited for long enough stalls the node.
func TestAWriteThatDoesNotEndIsAProblem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := Create(dir, Identity{Cluster: "c", Node: "n", Disk: "d"}, nil); err != nil {
		t.Fatal(err)
	}
	d, err := Open(dir, "n")
	if err != nil {
		t.Fatal(err)
	}
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
