package disk

import (
	"encoding/binary"
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
	last, err := r.disk.LastIndex()
	if err != nil {
		return nil, err
	}
	m := missed{index: index, received: index > last}
	s, err := r.SnapshotStore.Create(version, index, term, members, at, trans)
	if err != nil {
		return nil, r.disk.miss(m, err)
	}
	return &sink{SnapshotSink: s, missed: m, disk: r.disk}, nil
}

// missed is a snapshot that could not be written.
type missed struct {
	index    uint64
	received bool // from the leader, because the log does not reach so far
	err      error
}

// miss notes that a snapshot could not be written, and returns the error.
func (d *Disk) miss(m missed, err error) error {
	if err == nil {
		return nil
	}
	m.err = err
	d.mu.Lock()
	defer d.mu.Unlock()
	d.missed = &m
	return err
}

// reached notes that the log reaches this index: what a snapshot from the leader was to bring is there.
func (d *Disk) reached(last uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.missed != nil && d.missed.received && last > d.missed.index {
		d.missed = nil
	}
}

// SnapshotProblem returns why the last snapshot could not be written; nil if it was, or is not needed any
// more. own: the node has taken it itself, and can do so again.
func (d *Disk) SnapshotProblem() (own bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.missed == nil {
		return false, nil
	}
	return !d.missed.received, d.missed.err
}

type sink struct {
	raft.SnapshotSink
	missed    missed // what this is if it fails
	disk      *Disk
	cancelled bool
}

// Write implements raft.SnapshotSink.
func (s *sink) Write(p []byte) (int, error) {
	n, err := s.SnapshotSink.Write(p)
	return n, s.disk.miss(s.missed, err)
}

// Cancel implements raft.SnapshotSink.
func (s *sink) Cancel() error {
	s.cancelled = true
	return s.SnapshotSink.Cancel()
}

// Close implements raft.SnapshotSink. The snapshot is on the disk when it is noted.
func (s *sink) Close() error {
	err := s.SnapshotSink.Close()
	if s.cancelled {
		return err
	}
	if err == nil {
		err = s.disk.Set(snapshotKey, number(s.missed.index))
	}
	if err != nil {
		return s.disk.miss(s.missed, fmt.Errorf("complete the snapshot: %w", err))
	}
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	s.disk.missed = nil
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
	if err := d.intact(); err != nil {
		return fmt.Errorf("read the log in %s: %w", dir, err)
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

// intact reads all entries, also those that a snapshot has: other nodes may need them.
func (d *Disk) intact() error {
	return d.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(logBucket).ForEach(func(key, text []byte) error {
			if len(key) != 8 {
				return fmt.Errorf("%w: an entry of the log has no index", ErrDamaged)
			}
			return decode(binary.BigEndian.Uint64(key), text, &raft.Log{})
		})
	})
}
