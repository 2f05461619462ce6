// Package disk keeps what a Raft node must not forget: its log, its term and its vote, in a bbolt
// database, with the identity of the node.
//
// A voter that forgets entries it has acknowledged, or a vote it has given, can help to elect a
// leader without entries that were committed. The same indexes are then awarded again. An empty
// directory must therefore never pass for a new node. Create makes a directory's identity, which
// only an operator's command may do, and Open refuses a directory without one, or with that of another node.
//
// The stores are our own and not those of hashicorp/raft-boltdb, which links the abandoned boltdb/bolt, and panics when a
// number in the database is too short.
package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	bolt "go.etcd.io/bbolt"
)

// Names in a node's directory.
const (
	databaseFile = "raft.db"
	snapshots    = "snapshots"
)

const (
	// lockTimeout is how long Open waits for another process to leave the directory.
	lockTimeout = time.Second
	// retryWrite is when a write is tried again that must not fail.
	retryWrite = 200 * time.Millisecond
)

var (
	logBucket    = []byte("log")
	stableBucket = []byte("stable")
	identityKey  = []byte("fencepost identity")
)

var (
	// ErrNoIdentity means that a directory holds no node, or not all of one.
	ErrNoIdentity = errors.New("the directory has no identity")
	// ErrOtherIdentity means that a directory holds another node.
	ErrOtherIdentity = errors.New("the directory belongs to another node")
	// ErrNotEmpty means that a directory already holds a node, or a part of one.
	ErrNotEmpty = errors.New("the directory is not empty")
)

// Identity says whose directory it is.
type Identity struct {
	Cluster string `json:"cluster"` // random, made when the cluster was bootstrapped
	Node    string `json:"node"`    // the node's name
	Disk    string `json:"disk"`    // random, made with the directory
}

// Disk is the log store and the stable store of one node. Every write is on the disk when it
// returns. It is safe for concurrent use.
type Disk struct {
	Identity Identity
	db       *bolt.DB

	mu      sync.Mutex
	problem error // with which the last write failed
}

func openDatabase(dir string) (*Disk, error) {
	path := filepath.Join(dir, databaseFile)
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return nil, fmt.Errorf("open %s (does another process use it?): %w", path, err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{logBucket, stableBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare %s: %w", path, err), db.Close())
	}
	return &Disk{db: db}, nil
}

// Create makes the directory of a new node, and calls begin with its disk before it writes the
// identity. If anything fails, the directory is empty again, so that the command can be repeated. Create
// returns ErrNotEmpty unless the directory is absent or empty.
func Create(dir string, id Identity, begin func(*Disk) error) (err error) {
	if err := Prepare(dir); err != nil {
		return err
	}
	text, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("encode the identity: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(filepath.Join(dir, databaseFile)))
		}
	}()
	d, err := openDatabase(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if begin != nil {
		if err := begin(d); err != nil {
			return err
		}
	}
	return d.Set(identityKey, text)
}

// Prepare makes a directory if it is absent, and returns an error unless it is empty and can be written.
func Prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of the node: %w", err)
	}
	found, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the directory of the node: %w", err)
	}
	if len(found) > 0 {
		return fmt.Errorf("%w: %s contains %s", ErrNotEmpty, dir, found[0].Name())
	}
	probe := filepath.Join(dir, "probe")
	if err := os.WriteFile(probe, nil, 0o600); err != nil {
		return fmt.Errorf("write to the directory of the node: %w", err)
	}
	return os.Remove(probe)
}

// Open opens the directory of the named node. It returns an error that wraps ErrNoIdentity or
// ErrOtherIdentity unless the directory is that which Create made for this node, and has its log.
func Open(dir, node string) (*Disk, error) {
	if _, err := os.Stat(filepath.Join(dir, databaseFile)); err != nil { // it would be created
		return nil, fmt.Errorf("%w: %s has no %s: %w", ErrNoIdentity, dir, databaseFile, err)
	}
	d, err := openDatabase(dir)
	if err != nil {
		return nil, err
	}
	if err := d.check(dir, node); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// check reads the identity, and compares the log with the snapshots.
func (d *Disk) check(dir, node string) error {
	text, err := d.Get(identityKey)
	if err == nil {
		err = json.Unmarshal(text, &d.Identity)
	}
	switch id := d.Identity; {
	case err != nil:
		return fmt.Errorf("%w: that in %s cannot be read: %w", ErrNoIdentity, dir, err)
	case id.Node != node:
		return fmt.Errorf("%w: %s is of node %s, and this is %s", ErrOtherIdentity, dir, id.Node, node)
	}
	return d.complete(dir)
}

// complete checks that there is a snapshot, or every entry since. Raft's library would end the process otherwise.
func (d *Disk) complete(dir string) error {
	first, err := d.FirstIndex()
	if err != nil {
		return fmt.Errorf("read the log in %s: %w", dir, err)
	}
	newest := uint64(0)
	if _, err := os.Stat(filepath.Join(dir, snapshots)); err == nil { // the store would create it
		store, err := raft.NewFileSnapshotStore(dir, 1, io.Discard)
		if err != nil {
			return fmt.Errorf("open the snapshots in %s: %w", dir, err)
		}
		all, err := store.List()
		if err != nil {
			return fmt.Errorf("list the snapshots in %s: %w", dir, err)
		}
		if len(all) > 0 {
			newest = all[0].Index
		}
	}
	if first > newest+1 {
		return fmt.Errorf("%w: the log in %s begins at index %d, and no snapshot has what was before", ErrNoIdentity, dir, first)
	}
	last, err := d.LastIndex()
	if err != nil {
		return fmt.Errorf("read the log in %s: %w", dir, err)
	}
	for index := newest + 1; index <= last; index++ {
		if err := d.GetLog(index, &raft.Log{}); err != nil {
			return fmt.Errorf("%w: entry %d of the log in %s cannot be read: %w", ErrNoIdentity, index, dir, err)
		}
	}
	return nil
}
