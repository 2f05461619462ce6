package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/election/kv"
)

const (
	// atOnce is how many znodes are read at the same time.
	atOnce = 32
	// looks is how often what has changed meanwhile is read again before a snapshot is shown.
	looks = 3
	// lookAgain is when znodes that could not be read are read again: nothing tells that their ACL has
	// changed.
	lookAgain = 5 * time.Second
)

// view is what one watch has read. What the server will tell a change of is not read again.
type view struct {
	s  *store
	in *session

	mu       sync.Mutex
	znodes   map[string]*znode
	listings map[string]listing
	denied   bool // a record could not be read since the last snapshot
}

// Watch implements kv.Store. ZooKeeper tells one change of each znode that was read with a watch.
func (s *store) Watch(ctx context.Context, see func(kv.Snapshot)) error {
	in, err := s.watcher()
	if err != nil {
		return err
	}
	if err := s.sync(ctx, in); err != nil {
		return err
	}
	v := &view{s: s, in: in, znodes: map[string]*znode{}, listings: map[string]listing{}}
	for {
		snapshot, lives, changed, err := v.settle(ctx)
		if err != nil {
			return err
		}
		see(snapshot)
		var again <-chan time.Time
		if v.denied {
			again = time.After(lookAgain)
		}
		for _, id := range s.orphans(lives) {
			s.tidy(ctx, id)
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
		if connected, _, _, _ := in.state(); !connected {
			return in.failed("watch "+s.root, zk.ErrConnectionClosed)
		}
	}
}

// settle reads until nothing has changed meanwhile, but not for ever. changed is closed when
// something has changed since.
func (v *view) settle(ctx context.Context) (snapshot kv.Snapshot, lives []string, changed <-chan struct{}, err error) {
	for range looks {
		_, _, _, changed = v.in.state()
		snapshot, lives, err = v.read(ctx)
		if err != nil {
			return snapshot, nil, nil, err
		}
		select {
		case <-changed:
		default:
			return snapshot, lives, changed, nil
		}
	}
	return snapshot, lives, changed, nil
}

// read reads everything. The lives come last: whatever a record says holds it, and is not there
// then, is over.
func (v *view) read(ctx context.Context) (kv.Snapshot, []string, error) {
	var root, marker listing
	var err error
	v.denied = false
	if root, err = v.list(ctx, v.s.root); err != nil {
		return kv.Snapshot{}, nil, err
	}
	if marker, err = v.list(ctx, v.s.generation()); err != nil {
		return kv.Snapshot{}, nil, err
	}
	keys, err := v.keys(ctx, root.children)
	if err != nil {
		return kv.Snapshot{}, nil, err
	}
	found, err := v.records(ctx, keys)
	if err != nil {
		return kv.Snapshot{}, nil, err
	}
	lives, err := v.list(ctx, v.s.lives())
	if err != nil {
		return kv.Snapshot{}, nil, err
	}
	alive := make(map[string]bool, len(lives.children))
	for _, id := range lives.children {
		alive[id] = true
	}
	snapshot := kv.Snapshot{Marker: markerOf(marker.children), Entries: make(map[string]kv.Entry, len(found))}
	for i, n := range found {
		e, life := n.entry()
		if alive[life] {
			e.Life = life
		}
		snapshot.Entries[keys[i]] = e
	}
	return snapshot, lives.children, nil
}

// keys returns the keys of all records.
func (v *view) keys(ctx context.Context, databases []string) (keys []string, err error) {
	for _, db := range databases {
		if strings.HasPrefix(db, ".") {
			continue
		}
		resources, err := v.list(ctx, v.s.record(db))
		if err = v.unlessDenied(err); err != nil {
			return nil, err
		}
		for _, r := range resources.children {
			keys = append(keys, db+"/"+r)
		}
	}
	return keys, nil
}

// unlessDenied is the error of reading a record, nil if the record belongs to somebody else. That costs
// its own resource: it is shown as free, and whoever asks for it learns why that is denied.
func (v *view) unlessDenied(err error) error {
	if !errors.Is(err, zk.ErrNoAuth) {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.denied = true
	return nil
}

// records reads the records of these keys; nil is one that is no longer there, or cannot be read.
func (v *view) records(ctx context.Context, keys []string) ([]*znode, error) {
	found := make([]*znode, len(keys))
	group, all := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, key := range keys {
		group.Go(func() (err error) {
			found[i], err = v.get(all, v.s.record(key))
			return v.unlessDenied(err)
		})
	}
	return found, group.Wait()
}

// get reads a znode, unless the server will tell its next change.
func (v *view) get(ctx context.Context, path string) (*znode, error) {
	return watched(ctx, v, v.znodes, path, v.s.get)
}

// list reads the children of a znode, unless the server will tell their next change.
func (v *view) list(ctx context.Context, path string) (listing, error) {
	return watched(ctx, v, v.listings, path, v.s.list)
}

// watched returns what is known of a path that is watched. Otherwise it reads the path, which sets a
// watch if there is such a znode. all is what the view has read in this way.
func watched[T interface{ exists() bool }](ctx context.Context, v *view, all map[string]T, path string, read func(context.Context, *session, string) (T, error)) (T, error) {
	v.mu.Lock()
	known, ok := all[path]
	v.mu.Unlock()
	if ok && v.in.watches(path) {
		return known, nil
	}
	v.in.watch(path) // before the event can come
	answer, err := read(ctx, v.in, path)
	if err != nil || !answer.exists() {
		v.in.unwatch(path) // it may be watched all the same: then one event too many comes
	}
	if err != nil {
		return answer, fmt.Errorf("watch %s: %w", v.s.root, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	all[path] = answer
	return answer, nil
}
