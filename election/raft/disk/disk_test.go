package disk_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/fencepost/fencepost/election/raft/disk"
)

var id = disk.Identity{Cluster: "c", Node: "one", Disk: "d"}

// create returns the directory of a new node.
func create(t *testing.T, id disk.Identity) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "node")
	if err := disk.Create(dir, id, nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

func open(t *testing.T, dir string) *disk.Disk {
	t.Helper()
	d, err := disk.Open(dir, "one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func TestALogIsThereAfterARestart(t *testing.T) {
	t.Parallel()
	dir := create(t, id)
	d := open(t, dir)
	if d.Identity != id {
		t.Errorf("the identity is %+v", d.Identity)
	}
	first, err := d.FirstIndex()
	last, errLast := d.LastIndex()
	if err := errors.Join(err, errLast); err != nil || first != 0 || last != 0 {
		t.Errorf("an empty log goes from %d to %d, %v", first, last, err)
	}
	want := []*raft.Log{
		{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: []byte("members")},
		{Index: 2, Term: 7, Type: raft.LogCommand, Data: []byte("a"), Extensions: []byte("more"), AppendedAt: time.Unix(9, 42).UTC()},
		{Index: 257, Term: 7, Type: raft.LogNoop}, // after 2 and 256, in whatever order bytes are compared
	}
	if err := d.StoreLogs(append(entries(3, 256), want...)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.SetUint64([]byte("term"), 1<<40), d.Set([]byte("vote"), []byte("two")), d.Close()); err != nil {
		t.Fatal(err)
	}
	d = open(t, dir)
	for _, w := range want {
		var got raft.Log
		if err := d.GetLog(w.Index, &got); err != nil || !reflect.DeepEqual(&got, w) {
			t.Errorf("entry %d is %+v, %v, want %+v", w.Index, got, err, *w)
		}
	}
	if err := d.DeleteRange(1, 256); err != nil {
		t.Fatal(err)
	}
	if first, err := d.FirstIndex(); err != nil || first != 257 {
		t.Errorf("after the entries before 257 were deleted it begins at %d, %v", first, err)
	}
	if err := d.GetLog(2, &raft.Log{}); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("a deleted entry is read with %v", err)
	}
	if term, err := d.GetUint64([]byte("term")); err != nil || term != 1<<40 {
		t.Errorf("the term is %d, %v", term, err)
	}
	if vote, err := d.Get([]byte("vote")); err != nil || string(vote) != "two" {
		t.Errorf("the vote is %q, %v", vote, err)
	}
	never, err := d.Get([]byte("never"))
	number, errNumber := d.GetUint64([]byte("never"))
	if err := errors.Join(err, errNumber); err != nil || len(never) > 0 || number != 0 {
		t.Errorf("what was never set is %q and %d, %v", never, number, err)
	}
}

// A directory that has lost something, or is another's, is refused, and stays as it is.
func TestADirectoryThatIsNotTheNodesOwnIsRefused(t *testing.T) {
	t.Parallel()
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name string
		node string
		do   func(*testing.T, string)
		want error
	}{
		{"the directory is empty", "one", remove("raft.db"), disk.ErrNoIdentity},
		{"the directory is gone", "one", func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, disk.ErrNoIdentity},
		{"the identity cannot be read", "one", func(t *testing.T, dir string) {
			d := open(t, dir)
			if err := errors.Join(d.Set([]byte("fencepost identity"), []byte("mine")), d.Close()); err != nil {
				t.Fatal(err)
			}
		}, disk.ErrNoIdentity},
		{"the node has another name", "two", func(*testing.T, string) {}, disk.ErrOtherIdentity},
		{"a snapshot is missing", "one", func(t *testing.T, dir string) {
			d := open(t, dir)
			if err := errors.Join(d.StoreLog(&raft.Log{Index: 9}), d.Close()); err != nil {
				t.Fatal(err)
			}
		}, disk.ErrNoIdentity},
		{"an entry is missing", "one", func(t *testing.T, dir string) {
			d := open(t, dir)
			if err := errors.Join(d.StoreLogs(append(entries(1, 7), entries(9, 9)...)), d.Close()); err != nil {
				t.Fatal(err)
			}
		}, disk.ErrNoIdentity},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := create(t, id)
			c.do(t, dir)
			for range 2 { // refused again: nothing was made in the meantime
				if d, err := disk.Open(dir, c.node); !errors.Is(err, c.want) || d != nil {
					t.Fatalf("it is opened with %v", err)
				}
			}
		})
	}
}

// entries returns entries without data.
func entries(from, to uint64) (all []*raft.Log) {
	for i := from; i <= to; i++ {
		all = append(all, &raft.Log{Index: i})
	}
	return all
}

func TestAWriteThatFailsIsAProblemUntilOneSucceeds(t *testing.T) {
	t.Parallel()
	d := open(t, create(t, id))
	if err := d.Problem(); err != nil {
		t.Errorf("a new disk has the problem %v", err)
	}
	if err := d.Set(nil, []byte("a key is needed")); err == nil || !errors.Is(d.Problem(), err) {
		t.Errorf("a write ended with %v, and the problem is %v", err, d.Problem())
	}
	if err := d.StoreLogs(entries(1, 1)); err != nil || d.Problem() != nil {
		t.Errorf("the next write ended with %v, and the problem is %v", err, d.Problem())
	}
}

// A node that was sent a snapshot keeps the older log that it had.
func TestANodeThatWasSentASnapshotIsOpened(t *testing.T) {
	t.Parallel()
	dir := create(t, id)
	d := open(t, dir)
	files, err := raft.NewFileSnapshotStore(dir, 2, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	_, transport := raft.NewInmemTransport("")
	sink, err := files.Create(1, 20, 1, raft.Configuration{}, 1, transport)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.StoreLogs(entries(1, 7)), sink.Close(), d.StoreLogs(entries(21, 22)), d.Close()); err != nil {
		t.Fatal(err)
	}
	if err := open(t, dir).Close(); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "snapshots")); err != nil {
		t.Fatal(err)
	}
	if _, err := disk.Open(dir, "one"); !errors.Is(err, disk.ErrNoIdentity) {
		t.Errorf("without its snapshot it is opened with %v", err)
	}
}

func TestANodeIsMadeInAnEmptyDirectoryOnly(t *testing.T) {
	t.Parallel()
	if err := disk.Create(create(t, id), id, nil); !errors.Is(err, disk.ErrNotEmpty) {
		t.Errorf("a second node is made with %v", err)
	}
	dir, failed := t.TempDir(), errors.New("failed")
	if err := disk.Create(dir, id, func(*disk.Disk) error { return failed }); !errors.Is(err, failed) {
		t.Fatalf("it ended with %v", err)
	}
	if _, err := disk.Open(dir, "one"); !errors.Is(err, disk.ErrNoIdentity) {
		t.Errorf("a node whose creation failed is opened with %v", err)
	}
	if err := disk.Create(dir, id, nil); err != nil {
		t.Errorf("it is made again with %v", err)
	}
}

func TestADirectoryIsUsedOnce(t *testing.T) {
	t.Parallel()
	dir := create(t, id)
	open(t, dir)
	if _, err := disk.Open(dir, "one"); err == nil {
		t.Error("it was opened twice")
	}
}
