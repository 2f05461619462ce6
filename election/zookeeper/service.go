package zookeeper

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path"
	"sync"

	"github.com/go-zookeeper/zk"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/standstill"
)

const (
	// anyVersion is the version of whatever is there.
	anyVersion = -1
	// conflicts is how often a write is made again that someone else's write has overtaken.
	conflicts = 10
)

// service is one prefix in one ensemble.
type service struct {
	endpoint
	root string // the prefix, with a slash at its beginning
	wg   sync.WaitGroup

	mu     sync.Mutex
	conns  map[bool]*connection // by whether they are for watching
	closed bool
}

var (
	_ standstill.Service = (*service)(nil)
	_ kv.Checker         = (*service)(nil)
)

func (s *service) generation() string { return s.root + "/.generation" }

// record returns the path of a record. Package kv reads a key that no lease has, ".", which is no
// name of a znode.
func (s *service) record(key string) string {
	if key == "." {
		key = ".none"
	}
	return s.root + "/" + key
}

// connection returns the connection for requests, or for watching. It does not wait until there is one.
func (s *service) connection(watching bool) (*connection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("%s: %w", s.name, zk.ErrClosing)
	}
	old := s.conns[watching]
	if old != nil && !old.isOver() {
		return old, nil
	}
	if old != nil {
		s.wg.Go(old.close)
	}
	c, err := s.connect(watching)
	if err != nil {
		return nil, err
	}
	s.conns[watching] = c
	return c, nil
}

// znode is a znode as it was read; nil if there is none.
type znode struct {
	data []byte
	stat *zk.Stat
}

// get reads a znode.
func (c *connection) get(ctx context.Context, path string, read func(*zk.Conn) ([]byte, *zk.Stat, error)) (*znode, error) {
	n, err := call(ctx, c, "read "+path, func(conn *zk.Conn) (*znode, error) {
		data, stat, err := read(conn)
		return &znode{data, stat}, err
	})
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return n, nil
}

// newest reads a znode after everything that was committed before.
func (s *service) newest(ctx context.Context, c *connection, path string) (*znode, error) {
	if err := c.sync(ctx, s.root); err != nil {
		return nil, err
	}
	return c.get(ctx, path, func(conn *zk.Conn) ([]byte, *zk.Stat, error) { return conn.Get(path) })
}

// sync makes the server catch up with the ensemble's leader.
func (c *connection) sync(ctx context.Context, root string) error {
	_, err := call(ctx, c, "sync "+root, func(conn *zk.Conn) (string, error) { return conn.Sync(root) })
	return err
}

// set writes a znode that has this version, and returns what it is then. kv.ErrConflict means that there is
// something else.
func (c *connection) set(ctx context.Context, path string, data []byte, version int32) (*znode, error) {
	stat, err := call(ctx, c, "write "+path, func(conn *zk.Conn) (*zk.Stat, error) { return conn.Set(path, data, version) })
	switch {
	case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrBadVersion):
		return nil, kv.ErrConflict
	case err != nil:
		return nil, err
	}
	return &znode{data, stat}, nil
}

// ensure makes a znode without data, and those above it.
func (c *connection) ensure(ctx context.Context, at string) error {
	_, err := call(ctx, c, "create "+at, func(conn *zk.Conn) (string, error) { return conn.Create(at, nil, zk.FlagPersistent, c.acl()) })
	switch {
	case errors.Is(err, zk.ErrNodeExists):
		return nil
	case errors.Is(err, zk.ErrNoNode) && path.Dir(at) != "/":
		if err := c.ensure(ctx, path.Dir(at)); err != nil {
			return err
		}
		return c.ensure(ctx, at)
	}
	return err
}

// stored returns what a znode says; nil if there is none, or one that was made for a record that has not come.
// What another program has written is a record of no one.
func (n *znode) stored(key string) *standstill.Stored {
	if n == nil || len(n.data) == 0 && n.stat.Version == 0 {
		return nil
	}
	var r standstill.Record
	if json.Unmarshal(n.data, &r) != nil {
		r = standstill.Record{}
	}
	r.Key = key
	return &standstill.Stored{Record: r, Version: n.stat.Mzxid, Basis: n.stat.Version}
}

// Get implements standstill.Service.
func (s *service) Get(ctx context.Context, key string) (_ *standstill.Stored, marker string, err error) {
	c, err := s.connection(false)
	if err != nil {
		return nil, "", err
	}
	var n, generation *znode
	group, both := errgroup.WithContext(ctx)
	group.Go(func() (err error) { n, err = s.newest(both, c, s.record(key)); return err })
	group.Go(func() (err error) { generation, err = s.newest(both, c, s.generation()); return err })
	if err := group.Wait(); err != nil {
		return nil, "", err
	}
	if generation != nil {
		marker = string(generation.data)
	}
	return n.stored(key), marker, nil
}

// Put implements standstill.Service.
func (s *service) Put(ctx context.Context, old *standstill.Stored, r standstill.Record) (*standstill.Stored, error) {
	c, err := s.connection(false)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode a record: %w", err)
	}
	var version int32
	if old == nil {
		err = c.ensure(ctx, s.record(r.Key))
	} else {
		version, _ = old.Basis.(int32)
	}
	if err != nil {
		return nil, err
	}
	n, err := c.set(ctx, s.record(r.Key), data, version)
	if err != nil {
		return nil, err
	}
	return n.stored(r.Key), nil
}

// Mark implements standstill.Service.
func (s *service) Mark(ctx context.Context, marker string, replace bool) error {
	c, err := s.connection(false)
	if err != nil {
		return err
	}
	for range conflicts {
		old, err := s.newest(ctx, c, s.generation())
		switch {
		case err != nil:
			return err
		case old == nil:
			if err := c.ensure(ctx, s.generation()); err != nil {
				return err
			}
			continue
		case len(old.data) > 0 && !replace:
			return nil
		}
		if _, err := c.set(ctx, s.generation(), []byte(marker), old.stat.Version); !errors.Is(err, kv.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("write %s: %w", s.generation(), kv.ErrConflict)
}

// Position implements standstill.Service. A write without any meaning shows how far zxids have come.
func (s *service) Position(ctx context.Context) (marker string, version int64, err error) {
	c, err := s.connection(false)
	if err != nil {
		return "", 0, err
	}
	for range conflicts {
		n, err := s.newest(ctx, c, s.generation())
		if err != nil || n == nil {
			return "", 0, err
		}
		written, err := c.set(ctx, s.generation(), n.data, n.stat.Version)
		if errors.Is(err, kv.ErrConflict) {
			continue
		}
		if err != nil {
			return "", 0, err
		}
		return string(n.data), written.stat.Mzxid, nil
	}
	return "", 0, fmt.Errorf("write %s: %w", s.generation(), kv.ErrConflict)
}

// Check implements kv.Checker: it makes and deletes a znode, and tries to write the marker with a version that
// it does not have.
func (s *service) Check(ctx context.Context) error {
	c, err := s.connection(false)
	if err != nil {
		return err
	}
	probe := s.root + "/.check-" + rand.Text()
	_, err = call(ctx, c, "create "+probe, func(conn *zk.Conn) (string, error) {
		if _, err := conn.Create(probe, nil, zk.FlagEphemeral, s.acl()); err != nil {
			return "", err
		}
		return "", conn.Delete(probe, anyVersion)
	})
	if err != nil {
		return err
	}
	if _, err = c.set(ctx, s.generation(), nil, math.MaxInt32); errors.Is(err, kv.ErrConflict) {
		return nil
	}
	return err
}

// Close implements standstill.Service.
func (s *service) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, c := range s.conns {
		s.wg.Go(c.close)
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}
