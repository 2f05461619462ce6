package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost/fencepost/election/kv"
)

const (
	// anyVersion is the version of whatever is there.
	anyVersion = -1
	// conflicts is how often a write is made again that somebody else's write has overtaken.
	conflicts = 10
)

func (s *store) generation() string          { return s.root + "/.generation" }
func (s *store) marker(marker string) string { return s.generation() + "/" + marker }
func (s *store) lives() string               { return s.root + "/.lives" }
func (s *store) life(id string) string       { return s.lives() + "/" + id }

// record returns the path of a record. Package kv reads a key that no lease has, ".", which is no
// name of a znode.
func (s *store) record(key string) string {
	if key == "." {
		key = ".none"
	}
	return s.root + "/" + key
}

// held is the data of a znode that has a record.
type held struct {
	Life    string          `json:"life,omitempty"` // "": nobody
	Version int32           `json:"version"`        // of the data themselves
	Record  json.RawMessage `json:"record"`
}

// znode is a znode as it was read.
type znode struct {
	data []byte
	stat zk.Stat
}

func (n *znode) exists() bool { return n != nil }

// basis is what a Swap compares.
type basis struct {
	there   bool
	version int32
}

// entry returns what a znode means, and the life that it names if it has the version that it
// names. n is nil if there is none. One without data was made for a record that has not come.
func (n *znode) entry() (e kv.Entry, life string) {
	if n == nil {
		return kv.Entry{Basis: basis{}}, ""
	}
	e.Basis = basis{true, n.stat.Version}
	if len(n.data) == 0 {
		return e, ""
	}
	var h held
	e.Record, e.Version = n.data, n.stat.Mzxid
	if json.Unmarshal(n.data, &h) == nil && h.Record != nil && h.Version == n.stat.Version {
		e.Record, life = h.Record, h.Life
	}
	return e, life
}

// markerOf returns the marker that the children of its parent are. If somebody has added one, the
// text is no marker.
func markerOf(children []string) string {
	slices.Sort(children)
	return strings.Join(children, " ")
}

// get reads a znode. It returns nil if there is none.
func (s *store) get(ctx context.Context, in *session, path string) (*znode, error) {
	n, err := call(ctx, in, "read "+path, func(c *zk.Conn) (*znode, error) {
		data, stat, err := c.Get(path)
		if err != nil {
			return nil, err
		}
		return &znode{data, *stat}, nil
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return n, err
}

// listing is the children of a znode, and its version.
type listing struct {
	there    bool
	children []string
	version  int32
}

func (l listing) exists() bool { return l.there }

// list reads the children of a znode.
func (s *store) list(ctx context.Context, in *session, path string) (listing, error) {
	l, err := call(ctx, in, "read "+path, func(c *zk.Conn) (listing, error) {
		children, stat, err := c.Children(path)
		if err != nil {
			return listing{}, err
		}
		return listing{true, children, stat.Version}, nil
	})
	if errors.Is(err, zk.ErrNoNode) {
		return listing{}, nil
	}
	return l, err
}

// ensure makes a znode without data, and those above it.
func (s *store) ensure(ctx context.Context, in *session, at string) error {
	_, err := call(ctx, in, "create "+at, func(c *zk.Conn) (string, error) { return c.Create(at, nil, zk.FlagPersistent, s.acl()) })
	switch {
	case errors.Is(err, zk.ErrNodeExists):
		return nil
	case errors.Is(err, zk.ErrNoNode) && path.Dir(at) != "/":
		if err := s.ensure(ctx, in, path.Dir(at)); err != nil {
			return err
		}
		return s.ensure(ctx, in, at)
	}
	return err
}

// multi makes changes together, or none of them. If one is refused, refused is its place, and err
// says why.
func (s *store) multi(ctx context.Context, in *session, what string, ops ...any) (results []zk.MultiResponse, refused int, err error) {
	type answer struct {
		results []zk.MultiResponse
		refused int
	}
	a, err := call(ctx, in, what, func(c *zk.Conn) (answer, error) {
		results, err := c.Multi(ops...)
		for i, r := range results {
			if isAnswer(r.Error) {
				return answer{nil, i}, r.Error
			}
		}
		return answer{results, -1}, err
	})
	if err == nil && len(a.results) != len(ops) {
		err = fmt.Errorf("%s: %d answers to %d requests", what, len(a.results), len(ops))
	}
	return a.results, a.refused, err
}

// isAnswer reports whether the error of one of several changes is its own. The others have one that
// only says that there is such a change.
func isAnswer(err error) bool {
	return errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNodeExists) || errors.Is(err, zk.ErrBadVersion) ||
		errors.Is(err, zk.ErrNoAuth) || errors.Is(err, zk.ErrNotEmpty) || errors.Is(err, zk.ErrInvalidACL)
}
