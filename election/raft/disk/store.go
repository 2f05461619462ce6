package disk

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	bolt "go.etcd.io/bbolt"
)

var (
	_ raft.LogStore    = (*Disk)(nil)
	_ raft.StableStore = (*Disk)(nil)
)

// update makes a write, and notes how it has ended.
func (d *Disk) update(do func(*bolt.Tx) error) error {
	err := d.db.Update(do)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.problem = err
	return err
}

// Problem returns why the last write failed, for example because the disk is full; nil if it has succeeded.
func (d *Disk) Problem() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.problem
}

// Close closes the database.
func (d *Disk) Close() error { return d.db.Close() }

// FirstIndex implements raft.LogStore.
func (d *Disk) FirstIndex() (uint64, error) { return d.end((*bolt.Cursor).First) }

// LastIndex implements raft.LogStore.
func (d *Disk) LastIndex() (uint64, error) { return d.end((*bolt.Cursor).Last) }

// end returns the index of an entry at one end of the log, 0 if the log is empty.
func (d *Disk) end(move func(*bolt.Cursor) (key, value []byte)) (index uint64, err error) {
	err = d.db.View(func(tx *bolt.Tx) error {
		if key, _ := move(tx.Bucket(logBucket).Cursor()); key != nil {
			index = binary.BigEndian.Uint64(key)
		}
		return nil
	})
	return index, err
}

// GetLog implements raft.LogStore.
func (d *Disk) GetLog(index uint64, log *raft.Log) error {
	return d.db.View(func(tx *bolt.Tx) error {
		text := tx.Bucket(logBucket).Get(number(index))
		if text == nil {
			return raft.ErrLogNotFound
		}
		if err := json.Unmarshal(text, log); err != nil {
			return fmt.Errorf("decode entry %d of the log: %w", index, err)
		}
		return nil
	})
}

// StoreLog implements raft.LogStore.
func (d *Disk) StoreLog(log *raft.Log) error { return d.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore.
func (d *Disk) StoreLogs(logs []*raft.Log) error {
	return d.update(func(tx *bolt.Tx) error {
		for _, log := range logs {
			text, err := json.Marshal(log)
			if err == nil {
				err = tx.Bucket(logBucket).Put(number(log.Index), text)
			}
			if err != nil {
				return fmt.Errorf("store entry %d: %w", log.Index, err)
			}
		}
		return nil
	})
}

// DeleteRange implements raft.LogStore. Both ends are deleted too.
func (d *Disk) DeleteRange(first, last uint64) error {
	return d.update(func(tx *bolt.Tx) error {
		for index := first; index <= last; index++ {
			if err := tx.Bucket(logBucket).Delete(number(index)); err != nil {
				return fmt.Errorf("delete entry %d: %w", index, err)
			}
		}
		return nil
	})
}

// Set implements raft.StableStore.
func (d *Disk) Set(key, value []byte) error {
	return d.update(func(tx *bolt.Tx) error { return tx.Bucket(stableBucket).Put(key, value) })
}

// Get implements raft.StableStore. It returns an empty value for a key that was never set.
func (d *Disk) Get(key []byte) (value []byte, err error) {
	err = d.db.View(func(tx *bolt.Tx) error {
		value = append(value, tx.Bucket(stableBucket).Get(key)...) // bbolt's own is valid within the transaction only
		return nil
	})
	return value, err
}

// SetUint64 implements raft.StableStore. It does not return before the value is on the disk: Raft's
// library ends the whole process if the term cannot be written. A node that waits here takes no part.
func (d *Disk) SetUint64(key []byte, value uint64) error {
	for d.Set(key, number(value)) != nil {
		time.Sleep(retryWrite)
	}
	return nil
}

// GetUint64 implements raft.StableStore. It returns 0 for a key that was never set.
func (d *Disk) GetUint64(key []byte) (uint64, error) {
	value, err := d.Get(key)
	switch {
	case err != nil, len(value) == 0:
		return 0, err
	case len(value) != 8:
		return 0, fmt.Errorf("the value of %q has %d bytes instead of 8", key, len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
