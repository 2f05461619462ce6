// Package disk keeps what a Raft node must not forget: its log, its term and its vote, in a bbolt
// database, and an identity beside it.
//
// A voter that forgets entries it has acknowledged, or a vote it has given, can help to elect a
// leader without entries that were committed. The same indexes are then awarded again. An empty
// directory must therefore never pass for a new node. Create makes a directory's identity, which
// only an operator's command may do, and Open refuses a directory whose identity is missing,
// belongs to another node, or differs between the file and the database.
package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
)

// Names in a node's directory.
const (
	identityFile = "identity.json"
	databaseFile = "raft.db"
	snapshots    = "snapshots"
)

var (
	// ErrNoIdentity means that a directory holds no node.
	ErrNoIdentity = errors.New("the directory has no identity")
	// ErrOtherIdentity means that a directory holds another node, or is put together from the
	// directories of two.
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

// Create makes the directory of a new node, and calls begin with its disk before it writes the
// identity file. If anything fails, the directory is empty again, so that the command can be repeated. Create
// returns ErrNotEmpty unless the directory is absent or empty.
func Create(dir string, id Identity, begin func(*Disk) error) (err error) {
	if err := Prepare(dir); err != nil {
		return err
	}
	text, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the identity: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, clearAway(dir))
		}
	}()
	d, err := openDatabase(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := d.putIdentity(id); err != nil {
		return err
	}
	if begin != nil {
		if err := begin(d); err != nil {
			return err
		}
	}
	return writeFile(filepath.Join(dir, identityFile), append(text, '\n'))
}

// clearAway removes what Create has made in a directory that was empty.
func clearAway(dir string) error {
	var errs []error
	for _, name := range []string{databaseFile, identityFile + ".new", identityFile} {
		if err := os.Remove(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// probeSize is more than the files of a new node need.
const probeSize = 1 << 20

// Prepare makes a directory if it is absent, and returns an error unless it is empty, can be written, and has
// room for a new node.
func Prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory of the node: %w", err)
	}
	if err := Empty(dir); err != nil {
		return err
	}
	probe := filepath.Join(dir, identityFile+".new")
	if err := os.WriteFile(probe, make([]byte, probeSize), 0o600); err != nil {
		return errors.Join(fmt.Errorf("write to the directory of the node: %w", err), clearAway(dir))
	}
	return os.Remove(probe)
}

// Empty returns ErrNotEmpty unless the directory is absent or empty.
func Empty(dir string) error {
	found, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("read the directory of the node: %w", err)
	case len(found) > 0:
		return fmt.Errorf("%w: %s contains %s", ErrNotEmpty, dir, found[0].Name())
	}
	return nil
}

// Open opens the directory of the named node. It returns an error that wraps ErrNoIdentity or
// ErrOtherIdentity unless the directory is exactly that which Create made for this node, and one that
// wraps ErrDamaged if the database cannot be read as it was written.
func Open(dir, node string) (d *Disk, err error) {
	text, err := os.ReadFile(filepath.Join(dir, identityFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%w: %s has no %s", ErrNoIdentity, dir, identityFile)
	case err != nil:
		return nil, fmt.Errorf("read the identity of the node: %w", err)
	}
	var id Identity
	if err := json.Unmarshal(text, &id); err != nil || id.Cluster == "" || id.Node == "" || id.Disk == "" {
		return nil, fmt.Errorf("%w: %s in %s cannot be read", ErrNoIdentity, identityFile, dir)
	}
	if id.Node != node {
		return nil, fmt.Errorf("%w: %s is of node %s, and this is %s", ErrOtherIdentity, dir, id.Node, node)
	}
	if _, err := os.Stat(filepath.Join(dir, databaseFile)); err != nil { // bbolt would create it
		return nil, fmt.Errorf("%w: %s has no %s: %w", ErrNoIdentity, dir, databaseFile, err)
	}
	if d, err = openDatabase(dir); err != nil {
		return nil, err
	}
	d.Identity = id
	if err := guarded(func() error { return d.check(dir) }); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// check compares the identity with that in the database, and the log with the snapshots.
func (d *Disk) check(dir string) error {
	kept, err := d.identity()
	switch {
	case err != nil:
		return err
	case kept != d.Identity:
		return fmt.Errorf("%w: in %s, %s and %s are of two nodes", ErrOtherIdentity, dir, identityFile, databaseFile)
	}
	return d.complete(dir)
}

// writeFile writes a file so that it is there as a whole, or not at all.
func writeFile(path string, text []byte) (err error) {
	next := path + ".new"
	f, err := os.OpenFile(next, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write the identity: %w", err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write the identity: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("write the identity: %w", err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("write the identity: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("write the identity: %w", err)
	}
	return nil
}

func (d *Disk) putIdentity(id Identity) error {
	text, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("encode the identity: %w", err)
	}
	return d.Set(identityKey, text)
}

// identity returns the identity that the database keeps; the zero Identity if it keeps none.
func (d *Disk) identity() (id Identity, err error) {
	err = d.db.View(func(tx *bolt.Tx) error {
		if text := tx.Bucket(stableBucket).Get(identityKey); text != nil {
			return json.Unmarshal(text, &id)
		}
		return nil
	})
	if err != nil {
		return Identity{}, fmt.Errorf("read the identity in %s: %w", databaseFile, err)
	}
	return id, nil
}
