package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/election/kv"
)

// store is the kv.Store of one prefix in one ensemble.
type store struct {
	endpoint
	root   string // the prefix, with a slash at its beginning
	proxy  string
	ttl    time.Duration // of the session for what is not about a lease
	log    *zap.Logger
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu struct {
		sync.Mutex
		sessions map[purpose]*session
		lives    map[string]*life // by id
		tag      string           // begins the ids of all lives that begin here
		made     int              // sessions
		begun    int64            // lives
		closed   bool
	}
}

var (
	_ kv.Store   = (*store)(nil)
	_ kv.Checker = (*store)(nil)
)

// main returns the session for what is neither about a life nor a watch.
func (s *store) main() (*session, error) { return s.session(s.ttl) }

// watcher returns the session for watches.
func (s *store) watcher() (*session, error) { return s.sessionFor(purpose{s.ttl, true}) }

// sync makes the server to which a session is connected catch up with the leader.
func (s *store) sync(ctx context.Context, in *session) error {
	_, err := call(ctx, in, "sync "+s.root, func(c *zk.Conn) (string, error) { return c.Sync(s.root) })
	return err
}

// Read implements kv.Store. Each part is read after a sync; the life last, because once it is over
// it stays so. A Swap compares the parts together.
func (s *store) Read(ctx context.Context, key string) (kv.Entry, error) {
	in, err := s.main()
	if err != nil {
		return kv.Entry{}, err
	}
	if err := s.sync(ctx, in); err != nil {
		return kv.Entry{}, err
	}
	var n *znode
	var marker listing
	group, both := errgroup.WithContext(ctx)
	group.Go(func() (err error) { n, err = s.get(both, in, s.record(key)); return err })
	group.Go(func() (err error) { marker, err = s.list(both, in, s.generation()); return err })
	if err := group.Wait(); err != nil {
		return kv.Entry{}, err
	}
	e, life := n.entry()
	e.Marker = markerOf(marker.children)
	if life != "" {
		there, err := s.get(ctx, in, s.life(life))
		if err != nil {
			return kv.Entry{}, err
		}
		if there != nil {
			e.Life = life
		}
	}
	return e, nil
}

// Swap implements kv.Store.
func (s *store) Swap(ctx context.Context, key string, old kv.Entry, record []byte, id string) (version int64, err error) {
	in, err := s.main()
	if err != nil {
		return 0, err
	}
	b, _ := old.Basis.(basis)
	at, ops := s.record(key), []any{}
	if id != "" {
		l, ok := s.known(id)
		if !ok || l.ended || l.in.isOver() {
			return 0, lost("the life " + id + " is over")
		}
		if old.Marker == "" {
			return 0, kv.ErrConflict
		}
		in = l.in
		ops = append(ops, &zk.CheckVersionRequest{Path: s.life(id), Version: anyVersion}, &zk.CheckVersionRequest{Path: s.marker(old.Marker), Version: anyVersion})
	}
	if !b.there {
		if err := s.ensure(ctx, in, at); err != nil {
			return 0, err
		}
	}
	data, err := json.Marshal(held{Life: id, Version: b.version + 1, Record: record})
	if err != nil {
		return 0, fmt.Errorf("encode a record: %w", err)
	}
	ops = append(ops, &zk.SetDataRequest{Path: at, Data: data, Version: b.version})
	results, refused, err := s.multi(ctx, in, "write "+at, ops...)
	switch {
	case errors.Is(err, zk.ErrNoNode) && id != "" && refused == 0:
		return 0, lost(lostLife)
	case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrBadVersion):
		return 0, kv.ErrConflict
	case err != nil:
		return 0, err
	}
	return results[len(results)-1].Stat.Mzxid, nil
}

// Mark implements kv.Store. Whoever writes the marker writes its parent too, by its version.
func (s *store) Mark(ctx context.Context, marker string, replace bool) error {
	in, err := s.main()
	if err != nil {
		return err
	}
	what := "write " + s.generation()
	for range conflicts {
		now, err := s.list(ctx, in, s.generation())
		switch {
		case err != nil:
			return err
		case !now.there:
			if err := s.ensure(ctx, in, s.generation()); err != nil {
				return err
			}
			continue
		case len(now.children) > 0 && !replace:
			return nil
		}
		ops := []any{&zk.SetDataRequest{Path: s.generation(), Version: now.version}}
		for _, old := range now.children {
			ops = append(ops, &zk.DeleteRequest{Path: s.marker(old), Version: anyVersion})
		}
		ops = append(ops, &zk.CreateRequest{Path: s.marker(marker), Acl: s.acl()})
		_, _, err = s.multi(ctx, in, what, ops...)
		if !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, zk.ErrNodeExists) && !errors.Is(err, zk.ErrBadVersion) {
			return err
		}
	}
	return fmt.Errorf("%s: %w", what, kv.ErrConflict)
}

// Position implements kv.Store. A write without any meaning shows how far zxids have come.
func (s *store) Position(ctx context.Context) (marker string, version int64, err error) {
	in, err := s.main()
	if err != nil {
		return "", 0, err
	}
	what := "write " + s.generation()
	for range conflicts {
		if err := s.sync(ctx, in); err != nil {
			return "", 0, err
		}
		now, err := s.list(ctx, in, s.generation())
		if err != nil || len(now.children) == 0 {
			return "", 0, err
		}
		ops := []any{&zk.SetDataRequest{Path: s.generation(), Version: anyVersion}}
		for _, one := range now.children {
			ops = append(ops, &zk.CheckVersionRequest{Path: s.marker(one), Version: anyVersion})
		}
		results, _, err := s.multi(ctx, in, what, ops...)
		if errors.Is(err, zk.ErrNoNode) {
			continue
		}
		if err != nil {
			return "", 0, err
		}
		return markerOf(now.children), results[0].Stat.Mzxid, nil
	}
	return "", 0, fmt.Errorf("%s: %w", what, kv.ErrConflict)
}

// Check implements kv.Checker: it tries to make and delete a znode at once, and to write the marker's
// parent with a version that it does not have.
func (s *store) Check(ctx context.Context) error {
	in, err := s.main()
	if err != nil {
		return err
	}
	probe := s.root + "/.check-" + s.mine()
	if _, _, err := s.multi(ctx, in, "create "+probe, &zk.CreateRequest{Path: probe, Acl: s.acl()}, &zk.DeleteRequest{Path: probe, Version: anyVersion}); err != nil {
		return err
	}
	_, err = call(ctx, in, "write "+s.generation(), func(c *zk.Conn) (*zk.Stat, error) { return c.Set(s.generation(), nil, math.MaxInt32) })
	if errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	return err
}

// mine returns what nothing of another store is called.
func (s *store) mine() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tag()
}

// Close implements kv.Store. A session in which no life is known ends at once, another one expires.
func (s *store) Close() error {
	s.cancel()
	s.mu.Lock()
	s.mu.closed = true
	busy := map[*session]bool{}
	for _, l := range s.mu.lives {
		busy[l.in] = true
	}
	for _, in := range s.mu.sessions {
		s.wg.Go(func() { in.close(!busy[in]) })
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}
