package disk_test

import (
	"bytes"
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
		{Index: 2, Term: 7, Type: raft.LogCommand, Data: []byte("a"), Extensions: []byte("more"), AppendedAt: time.Unix(9, 42)},
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
	swap := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			other := create(t, disk.Identity{Cluster: "c", Node: "one", Disk: "another"})
			text, err := os.ReadFile(filepath.Join(other, name))
			if err := errors.Join(err, os.WriteFile(filepath.Join(dir, name), text, 0o600)); err != nil {
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
		{"the directory is empty", "one", func(t *testing.T, dir string) { remove("raft.db")(t, dir); remove("identity.json")(t, dir) }, disk.ErrNoIdentity},
		{"the directory is gone", "one", func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, disk.ErrNoIdentity},
		{"the identity is gone", "one", remove("identity.json"), disk.ErrNoIdentity},
		{"the log is gone", "one", remove("raft.db"), disk.ErrNoIdentity},
		{"the identity is of another disk", "one", swap("identity.json"), disk.ErrOtherIdentity},
		{"the log is of another disk", "one", swap("raft.db"), disk.ErrOtherIdentity},
		{"the identity is damaged", "one", func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "identity.json"), []byte("{}"), 0o600); err != nil {
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
		{"a snapshot that it was sent is missing", "one", func(t *testing.T, dir string) {
			received(t, dir)
			if err := os.RemoveAll(filepath.Join(dir, "snapshots")); err != nil {
				t.Fatal(err)
			}
		}, disk.ErrNoIdentity},
		{"a snapshot that it was sent cannot be read", "one", func(t *testing.T, dir string) {
			received(t, dir)
			found, err := filepath.Glob(filepath.Join(dir, "snapshots", "*", "meta.json"))
			if err != nil || len(found) != 1 {
				t.Fatalf("the snapshots are %v, %v", found, err)
			}
			if err := os.Truncate(found[0], 10); err != nil {
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

// received makes the directory that of a node that was behind, was sent a snapshot, and has two entries
// after it. It keeps the log that it had.
func received(t *testing.T, dir string) {
	t.Helper()
	d := open(t, dir)
	files, err := raft.NewFileSnapshotStore(dir, 2, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	_, transport := raft.NewInmemTransport("")
	sink, err := d.Remembering(files).Create(1, 20, 1, raft.Configuration{}, 1, transport)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.StoreLogs(entries(1, 7)), sink.Close(), d.StoreLogs(entries(21, 22)), d.Close()); err != nil {
		t.Fatal(err)
	}
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

func TestANodeThatWasSentASnapshotIsOpened(t *testing.T) {
	t.Parallel()
	dir := create(t, id)
	received(t, dir)
	if err := open(t, dir).Close(); err != nil {
		t.Error(err)
	}
}

// TestASnapshotThatIsDamagedIsMissing: Raft's library would go on from the one before it.
func TestASnapshotThatIsDamagedIsMissing(t *testing.T) {
	t.Parallel()
	dir := create(t, id)
	received(t, dir)
	found, err := filepath.Glob(filepath.Join(dir, "snapshots", "*", "state.bin"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the snapshots are %v, %v", found, err)
	}
	if err := os.WriteFile(found[0], []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := disk.Open(dir, "one"); !errors.Is(err, disk.ErrNoIdentity) {
		t.Errorf("it is opened with %v", err)
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

// A snapshot of the leader's that could not be written is a problem until there is another one, or entries
// after it.
func TestASnapshotThatWasNotWrittenIsAProblem(t *testing.T) {
	t.Parallel()
	dir := create(t, id)
	d := open(t, dir)
	files, err := raft.NewFileSnapshotStore(dir, 2, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	store := d.Remembering(files)
	_, transport := raft.NewInmemTransport("")
	if err := d.StoreLogs(entries(1, 7)); err != nil {
		t.Fatal(err)
	}
	where := filepath.Join(dir, "snapshots")
	fails := func(index uint64, own bool) {
		t.Helper()
		if err := errors.Join(os.RemoveAll(where), os.WriteFile(where, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Create(1, index, 1, raft.Configuration{}, 1, transport); err == nil {
			t.Fatal("a snapshot was made in a file")
		}
		if is, err := d.SnapshotProblem(); err == nil || is != own {
			t.Errorf("the problem of the snapshot %d is %v, %v", index, err, is)
		}
		if err := errors.Join(os.Remove(where), os.Mkdir(where, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	fails(20, false)
	if err := d.StoreLogs(entries(8, 20)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.SnapshotProblem(); err == nil {
		t.Error("the problem is over too early")
	}
	if err := d.StoreLogs(entries(21, 21)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.SnapshotProblem(); err != nil {
		t.Errorf("with later entries the problem is %v", err)
	}
	fails(21, true)
	sink, err := store.Create(1, 21, 1, raft.Configuration{}, 1, transport)
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.SnapshotProblem(); err != nil {
		t.Errorf("with a snapshot the problem is %v", err)
	}
}

// A database that is not as it was written is named as damaged, and ends nothing but the attempt to open it.
func TestADamagedDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	const page = 4096
	truncate := func(to int64) func(*os.File) error { return func(f *os.File) error { return f.Truncate(to) } }
	for name, damage := range map[string]func(*os.File) error{
		"all but two pages are gone":   truncate(2 * page),
		"all but three pages are gone": truncate(3 * page),
		"all but five pages are gone":  truncate(5 * page),
		"the end is gone": func(f *os.File) error {
			info, err := f.Stat()
			return errors.Join(err, f.Truncate(info.Size()/2))
		},
		"the meta pages are zero": func(f *os.File) error { _, err := f.WriteAt(make([]byte, 2*page), 0); return err },
		"pages are zero":          func(f *os.File) error { _, err := f.WriteAt(make([]byte, 4*page), 2*page); return err },
		"most pages are zero": func(f *os.File) error {
			info, err := f.Stat()
			_, errWrite := f.WriteAt(make([]byte, info.Size()-8*page), 8*page)
			return errors.Join(err, errWrite)
		},
		"a byte of an entry is another": func(f *os.File) error {
			text, err := io.ReadAll(f)
			at := bytes.LastIndex(text, []byte("a lease"))
			_, errWrite := f.WriteAt([]byte{'A'}, int64(at))
			return errors.Join(err, errWrite)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := create(t, id)
			d := open(t, dir)
			var all []*raft.Log
			for i := range uint64(300) {
				all = append(all, &raft.Log{Index: i + 1, Term: 1, Data: bytes.Repeat([]byte("a lease"), 200)})
			}
			f, err := os.OpenFile(filepath.Join(dir, "raft.db"), os.O_RDWR, 0)
			if err := errors.Join(err, d.StoreLogs(all[:100]), d.StoreLogs(all[100:]), d.Close()); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(damage(f), f.Close()); err != nil {
				t.Fatal(err)
			}
			if d, err := disk.Open(dir, "one"); !errors.Is(err, disk.ErrDamaged) || d != nil {
				t.Errorf("it is opened with %v", err)
			}
		})
	}
}
