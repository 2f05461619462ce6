package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/election/standstill"
)

// atOnce is how many znodes are read at the same time.
const atOnce = 32

// view is what one watch has read. What the server will report the next change of is not read again.
type view struct {
	s *service
	c *connection

	mu       sync.Mutex
	znodes   map[string]*znode
	children map[string][]string
}

// Watch implements standstill.Service. ZooKeeper reports one change of each znode that was read with a watch. It
// cannot be asked for one before sync is answered: go-zookeeper 1.0.4 has a data race when a connection begins
// while it knows of watches. A connection for watching does not begin again.
func (s *service) Watch(ctx context.Context, tell func(standstill.Change)) error {
	c, err := s.connection(true)
	if err != nil {
		return err
	}
	if err := c.sync(ctx, s.root); err != nil {
		return err
	}
	v := &view{s: s, c: c, znodes: map[string]*znode{}, children: map[string][]string{}}
	for {
		changed := c.changes()
		change, err := v.read(ctx)
		if err != nil {
			return fmt.Errorf("watch %s: %w", s.root, err)
		}
		tell(change)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		if c.isOver() {
			return c.failed("watch "+s.root, zk.ErrConnectionClosed)
		}
	}
}

// read reads everything.
func (v *view) read(ctx context.Context) (change standstill.Change, err error) {
	change.All = true
	databases, err := v.list(ctx, v.s.root)
	if err != nil {
		return change, err
	}
	generation, err := v.get(ctx, v.s.generation())
	if err != nil {
		return change, err
	}
	if generation != nil {
		change.Marker = string(generation.data)
	}
	keys, err := v.keys(ctx, databases)
	if err != nil {
		return change, err
	}
	found := make([]*standstill.Stored, len(keys))
	group, all := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, key := range keys {
		group.Go(func() error {
			n, err := v.get(all, v.s.record(key))
			found[i] = n.stored(key)
			return unlessDenied(err)
		})
	}
	if err := group.Wait(); err != nil {
		return change, err
	}
	for _, r := range found {
		if r != nil {
			change.Records = append(change.Records, r)
		}
	}
	return change, nil
}

// keys returns the keys of all records.
func (v *view) keys(ctx context.Context, databases []string) (keys []string, err error) {
	for _, db := range databases {
		if strings.HasPrefix(db, ".") {
			continue
		}
		resources, err := v.list(ctx, v.s.record(db))
		if err = unlessDenied(err); err != nil {
			return nil, err
		}
		for _, r := range resources {
			keys = append(keys, db+"/"+r)
		}
	}
	return keys, nil
}

// unlessDenied is the error of reading a record, nil if the record belongs to someone else. That costs
// its own resource: it is shown as free, and whoever asks for it learns why that is denied.
func unlessDenied(err error) error {
	if errors.Is(err, zk.ErrNoAuth) {
		return nil
	}
	return err
}

// get reads a znode, unless the server will report its next change.
func (v *view) get(ctx context.Context, path string) (*znode, error) {
	return watched(v, v.znodes, path, func(watch bool) (*znode, error) {
		return v.c.get(ctx, path, func(conn *zk.Conn) ([]byte, *zk.Stat, error) {
			if !watch {
				return conn.Get(path)
			}
			data, stat, _, err := conn.GetW(path)
			return data, stat, err
		})
	}, func(n *znode) bool { return n != nil })
}

// list reads the children of a znode, unless the server will report their next change.
func (v *view) list(ctx context.Context, path string) ([]string, error) {
	return watched(v, v.children, path, func(watch bool) ([]string, error) {
		children, err := call(ctx, v.c, "read "+path, func(conn *zk.Conn) ([]string, error) {
			if !watch {
				children, _, err := conn.Children(path)
				return children, err
			}
			children, _, _, err := conn.ChildrenW(path)
			return children, err
		})
		if errors.Is(err, zk.ErrNoNode) {
			return nil, nil
		}
		return children, err
	}, func(children []string) bool { return children != nil })
}

// watched returns what is known of a path that is watched. Otherwise it reads the path, which sets a watch if
// there is such a znode and none has been set. all is what the view has read in this way.
func watched[T any](v *view, all map[string]T, path string, read func(watch bool) (T, error), exists func(T) bool) (T, error) {
	v.mu.Lock()
	known, ok := all[path]
	v.mu.Unlock()
	watching := v.c.watches(path)
	if ok && watching {
		return known, nil
	}
	if !watching {
		v.c.watch(path, true) // before the event can come
	}
	answer, err := read(!watching)
	if err != nil || !exists(answer) {
		v.c.watch(path, false)
		return answer, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	all[path] = answer
	return answer, nil
}
