package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// ErrDamaged means that the database is not as it was written.
var ErrDamaged = errors.New("the database is damaged")

// guarded returns as an error that wraps ErrDamaged how bbolt panics when it finds what it cannot have
// written, and a fault of the memory into which it maps its file, of which there is less than it expects.
// The end of the process would take all sessions with it, and would not say what to do.
func guarded(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	err = do()
	if errors.Is(err, bolterrors.ErrInvalid) || errors.Is(err, bolterrors.ErrChecksum) || errors.Is(err, bolterrors.ErrVersionMismatch) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// readable reads a file to its end, if there is one: where a mapped page cannot be read, there is no error.
func readable(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, f); err != nil {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

// sound checks the pages of a database. It is called by guarded.
func sound(db *bolt.DB) error {
	return db.View(func(tx *bolt.Tx) error {
		info, err := os.Stat(db.Path())
		if err != nil {
			return err
		}
		if info.Size() < tx.Size() { // Check, in its own goroutine, would end the process
			return fmt.Errorf("%w: it has %d of %d bytes", ErrDamaged, info.Size(), tx.Size())
		}
		var first error
		for err := range tx.Check() { // which waits until all are received
			if first == nil {
				first = fmt.Errorf("%w: %w", ErrDamaged, err)
			}
		}
		return first
	})
}
