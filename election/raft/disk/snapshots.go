package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
	bolt "go.etcd.io/bbolt"
)

// snapshotKey is the index of the newest snapshot that was taken or received. The log alone does not
// show that it is missing: a node that was sent a snapshot keeps the older log that it had.
var snapshotKey = []byte("fencepost snapshot")

// remembering is a store of snapshots of which the disk remembers the newest one.
type remembering struct {
	raft.SnapshotStore
	disk *Disk
}

// Remembering returns the store, and notes each snapshot that is complete, so that Open finds out if
// it is lost.
func (d *Disk) Remembering(s raft.SnapshotStore) raft.SnapshotStore { return remembering{s, d} }

// Create implements raft.SnapshotStore.
func (r remembering) Create(version raft.SnapshotVersion, index, term uint64, members raft.Configuration, at uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	s, err := r.SnapshotStore.Create(version, index, term, members, at, trans)
	if err != nil {
		return nil, err
	}
	return &sink{SnapshotSink: s, index: index, disk: r.disk}, nil
}

type sink struct {
	raft.SnapshotSink
	index     uint64
	disk      *Disk
	cancelled bool
}

// Cancel implements raft.SnapshotSink.
func (s *sink) Cancel() error {
	s.cancelled = true
	return s.SnapshotSink.Cancel()
}

// Close implements raft.SnapshotSink. The snapshot is on the disk when it is noted.
func (s *sink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil || s.cancelled {
		return err
	}
	if err := s.disk.Set(snapshotKey, number(s.index)); err != nil {
		return fmt.Errorf("note the snapshot: %w", err)
	}
	return nil
}

// complete checks that there is everything that the node has acknowledged: the newest snapshot, and
// every entry after it.
func (d *Disk) complete(dir string) error {
	newest, err := newestSnapshot(dir)
	if err != nil {
		return err
	}
	noted, errNoted := d.GetUint64(snapshotKey)
	first, errFirst := d.FirstIndex()
	last, errLast := d.LastIndex()
	if err := errors.Join(errNoted, errFirst, errLast); err != nil {
		return err
	}
	switch {
	case newest < noted:
		return fmt.Errorf("%w: the snapshot of the entries up to %d is missing in %s, or cannot be read", ErrNoIdentity, noted, dir)
	case first > newest+1:
		return fmt.Errorf("%w: the log in %s begins at index %d, and no snapshot has what was before", ErrNoIdentity, dir, first)
	case last <= newest:
		return nil
	}
	if missing := d.gap(newest+1, last); missing != 0 {
		return fmt.Errorf("%w: the log in %s has no entry %d", ErrNoIdentity, dir, missing)
	}
	return nil
}

// newestSnapshot returns the index of the newest snapshot; 0 if there is none. Raft's library would take
// an older one instead of one that cannot be read, and forget what was acknowledged since.
func newestSnapshot(dir string) (uint64, error) {
	if _, err := os.Stat(filepath.Join(dir, snapshots)); errors.Is(err, os.ErrNotExist) {
		return 0, nil // the store would create the directory
	}
	store, err := raft.NewFileSnapshotStore(dir, 1, io.Discard)
	if err != nil {
		return 0, fmt.Errorf("open the snapshots in %s: %w", dir, err)
	}
	all, err := store.List()
	if err != nil || len(all) == 0 {
		return 0, err
	}
	_, content, err := store.Open(all[0].ID) // which compares its checksum
	if err != nil {
		return 0, fmt.Errorf("%w: the newest snapshot in %s cannot be read: %w", ErrNoIdentity, dir, err)
	}
	return all[0].Index, content.Close()
}

// gap returns the first index that the log does not have; 0 if it has all of these.
func (d *Disk) gap(from, to uint64) (missing uint64) {
	_ = d.db.View(func(tx *bolt.Tx) error { // it returns no error
		bucket := tx.Bucket(logBucket)
		for index := from; index <= to; index++ {
			if bucket.Get(number(index)) == nil {
				missing = index
				break
			}
		}
		return nil
	})
	return missing
}
