package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// lockTimeout is how long Open waits for another process to leave the directory.
const lockTimeout = time.Second

var (
	logBucket    = []byte("log")
	stableBucket = []byte("stable")
	identityKey  = []byte("fencepost identity")
)

// Disk is the log store and the stable store of one node. Every write is on the disk when it
// returns. It is safe for concurrent use.
type Disk struct {
	Identity Identity
	db       *bolt.DB

	mu      sync.Mutex
	problem error     // with which the last write failed
	writing int       // writes that are under way
	insists bool      // what must be written has failed, and is tried again
	since   time.Time // when the last write ended, or the first of these began
	missed  *missed   // the last snapshot, if it could not be written
	slow    slowness
}

var (
	_ raft.LogStore    = (*Disk)(nil)
	_ raft.StableStore = (*Disk)(nil)
)

func openDatabase(dir string) (*Disk, error) {
	path := filepath.Join(dir, databaseFile)
	if err := readable(path); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	var db *bolt.DB
	err := guarded(func() (err error) {
		db, err = bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout, FreelistType: bolt.FreelistMapType})
		return err
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open %s: another process uses it", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := guarded(func() error { return sound(db) }); err != nil {
		return nil, errors.Join(fmt.Errorf("check %s: %w", path, err), guarded(db.Close))
	}
	err = db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(logBucket)
		if err == nil {
			_, err = tx.CreateBucketIfNotExists(stableBucket)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare %s: %w", path, err), db.Close())
	}
	return &Disk{db: db}, nil
}

// retryWrite is when what must be written is tried again.
const retryWrite = 200 * time.Millisecond

const (
	// stallAfter is how long a write may take. It is less than a request waits for, which a write of the
	// leader's and one of another node's precede.
	stallAfter = 1500 * time.Millisecond
	// stallFor is how long a disk counts as stalled after slow writes: an election takes less.
	stallFor = 4 * time.Second
	// slowAgain is how soon after a slow write another one shows that it was no chance.
	slowAgain = 30 * time.Second
)

// slowness is whether writes end and take too long. One of them may be chance, also at all nodes at once.
type slowness struct {
	took  time.Duration // by the last slow write
	at    time.Time     // when it ended; zero if there was none
	until time.Time     // when the disk no longer counts as stalled
}

// note notes how long a write took that has ended now.
func (s *slowness) note(now time.Time, took time.Duration) {
	if took <= stallAfter {
		return
	}
	if !s.at.IsZero() && now.Sub(s.at) < slowAgain {
		s.until = now.Add(stallFor)
	}
	s.took, s.at = took, now
}

// update makes a write.
func (d *Disk) update(do func(*bolt.Tx) error) error {
	d.mu.Lock()
	if d.writing++; d.writing == 1 {
		d.since = time.Now()
	}
	d.mu.Unlock()
	err := d.db.Update(do)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writing--
	now := time.Now()
	d.slow.note(now, now.Sub(d.since))
	d.since, d.problem = now, err
	return err
}

// Problem returns why the last write failed, for example because the disk is full, or that writes take too
// long; nil if the last one has succeeded in time.
func (d *Disk) Problem() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if waited := time.Since(d.since); d.writing > 0 && waited > stallAfter {
		return fmt.Errorf("nothing was written for %s", waited.Round(100*time.Millisecond))
	}
	if d.problem == nil && time.Now().Before(d.slow.until) {
		return fmt.Errorf("writes are too slow: one took %s", d.slow.took.Round(100*time.Millisecond))
	}
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
		return decode(index, text, log)
	})
}

// StoreLog implements raft.LogStore.
func (d *Disk) StoreLog(log *raft.Log) error { return d.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore.
func (d *Disk) StoreLogs(logs []*raft.Log) error {
	err := d.update(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(logBucket)
		for _, log := range logs {
			if err := bucket.Put(number(log.Index), encode(log)); err != nil {
				return fmt.Errorf("store entry %d: %w", log.Index, err)
			}
		}
		return nil
	})
	if err == nil && len(logs) > 0 {
		d.reached(logs[len(logs)-1].Index)
	}
	return err
}

// DeleteRange implements raft.LogStore. Both ends are deleted too.
func (d *Disk) DeleteRange(first, last uint64) error {
	return d.update(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(logBucket)
		for index := first; index <= last; index++ {
			if err := bucket.Delete(number(index)); err != nil {
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

func (d *Disk) insist(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.insists = on
}

// Stalled reports whether nothing can be written in time: a write does not end, several of the last ones took
// too long, or what must be written fails.
func (d *Disk) Stalled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.writing > 0 && time.Since(d.since) > stallAfter || time.Now().Before(d.slow.until) || d.insists
}

// SetUint64 implements raft.StableStore. It does not return before the value is on the disk: Raft's
// library ends the whole process if the term cannot be written. A node that waits here takes no part.
func (d *Disk) SetUint64(key []byte, value uint64) error {
	for d.Set(key, number(value)) != nil {
		d.insist(true)
		time.Sleep(retryWrite)
	}
	d.insist(false)
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

// headSize is the size of what precedes the extensions and the data of an entry: the checksum of all that
// follows, the term, the type, the time in nanoseconds, and the size of the extensions.
const headSize = crc32.Size + 8 + 1 + 8 + 4

func encode(log *raft.Log) []byte {
	text := make([]byte, crc32.Size, headSize+len(log.Extensions)+len(log.Data))
	text = binary.BigEndian.AppendUint64(text, log.Term)
	text = append(text, byte(log.Type))
	var at int64
	if !log.AppendedAt.IsZero() {
		at = log.AppendedAt.UnixNano()
	}
	text = binary.BigEndian.AppendUint64(text, uint64(at))
	text = binary.BigEndian.AppendUint32(text, uint32(len(log.Extensions)))
	text = append(append(text, log.Extensions...), log.Data...)
	binary.BigEndian.PutUint32(text, checksum(log.Index, text[crc32.Size:]))
	return text
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(index uint64, text []byte) uint32 {
	return crc32.Update(crc32.Checksum(number(index), castagnoli), castagnoli, text)
}

func decode(index uint64, text []byte, log *raft.Log) error {
	if len(text) < headSize || binary.BigEndian.Uint32(text) != checksum(index, text[crc32.Size:]) {
		return fmt.Errorf("%w: entry %d of the log, with %d bytes, has another checksum than its own", ErrDamaged, index, len(text))
	}
	text = append([]byte(nil), text[crc32.Size:]...) // bbolt's own is valid within the transaction only
	*log = raft.Log{Index: index, Term: binary.BigEndian.Uint64(text), Type: raft.LogType(text[8])}
	if at := int64(binary.BigEndian.Uint64(text[9:])); at != 0 {
		log.AppendedAt = time.Unix(0, at)
	}
	extensions, rest := binary.BigEndian.Uint32(text[17:]), text[headSize-crc32.Size:]
	if extensions > 0 {
		log.Extensions = rest[:extensions:extensions]
	}
	if data := rest[extensions:]; len(data) > 0 {
		log.Data = data
	}
	return nil
}
