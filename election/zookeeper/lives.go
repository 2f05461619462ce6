package zookeeper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/kv"
)

const (
	// tending is how often lives are looked at that nobody may renew any more.
	tending = 500 * time.Millisecond
	// tidying bounds the attempt to delete such a life.
	tidying = 2 * time.Second
	// tries is how often a renewal is sent while connections are lost.
	tries = 3
	// again is the pause before that.
	again = 100 * time.Millisecond
)

// life is one that was begun here and has not ended.
type life struct {
	in    *session
	ttl   time.Duration
	beat  time.Duration // when the last request was sent that extended it
	ended bool          // it is to be deleted
}

// session returns the session for lives of this TTL.
func (s *store) session(ttl time.Duration) (*session, error) {
	return s.sessionFor(purpose{timeout: ttl})
}

// sessionFor returns the session for this purpose. It does not wait until there is a connection.
// ZooKeeper takes whole milliseconds.
func (s *store) sessionFor(p purpose) (*session, error) {
	p.timeout = (p.timeout + time.Millisecond - 1).Truncate(time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.mu.sessions[p]
	if old != nil && !old.isOver() {
		return old, nil
	}
	if s.mu.closed {
		return nil, zk.ErrClosing
	}
	if old != nil {
		s.forgetLocked(old)
		s.wg.Go(func() { old.close(false) })
	}
	s.mu.made++
	fresh, err := s.newSession(p, fmt.Sprintf("%s.%d", s.tag(), s.mu.made))
	if err != nil {
		return nil, err
	}
	s.mu.sessions[p] = fresh
	return fresh, nil
}

// tag returns what begins the names of all lives of this store. s.mu is held.
func (s *store) tag() string {
	if s.mu.tag == "" {
		s.mu.tag = rand.Text()
	}
	return s.mu.tag
}

// forgetLocked forgets the lives of a session that is over.
func (s *store) forgetLocked(in *session) {
	for id, l := range s.mu.lives {
		if l.in == in {
			delete(s.mu.lives, id)
		}
	}
}

// known returns a copy of what is known of a life.
func (s *store) known(id string) (l life, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.mu.lives[id]; one != nil {
		return *one, true
	}
	return life{}, false
}

// change changes what is known of a life, if anything is.
func (s *store) change(id string, f func(l *life)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.mu.lives[id]; l != nil {
		f(l)
	}
}

// Begin implements kv.Store. A life that is made after its request was given up is deleted when a
// watch shows it.
func (s *store) Begin(ctx context.Context, ttl time.Duration) (kv.Life, error) {
	in, err := s.session(ttl)
	if err != nil {
		return kv.Life{}, err
	}
	s.mu.Lock()
	s.mu.begun++
	id := in.tag + "." + strconv.FormatInt(s.mu.begun, 10)
	s.mu.lives[id] = &life{in: in, ttl: ttl, beat: s.now()}
	s.mu.Unlock()
	create := func() error {
		_, err := call(ctx, in, "create "+s.life(id), func(c *zk.Conn) (string, error) {
			return c.Create(s.life(id), []byte(s.proxy), zk.FlagEphemeral, s.acl())
		})
		return err
	}
	if err = create(); errors.Is(err, zk.ErrNoNode) {
		if err = s.ensure(ctx, in, s.lives()); err == nil {
			err = create()
		}
	}
	if err != nil {
		s.drop(id)
		return kv.Life{}, err
	}
	_, _, granted, _ := in.state()
	s.change(id, func(l *life) { l.ttl = granted })
	return kv.Life{ID: id, TTL: granted}, nil
}

func (s *store) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.lives, id)
}

// lost says that a life is over.
func lost(why string) error { return fmt.Errorf("%w: %s", election.ErrLost, why) }

const (
	lostLife   = "its znode is not there: the session has expired, or somebody has deleted it"
	lostRecord = "its record was deleted, or somebody else has written it"
)

// Beat implements kv.Store.
func (s *store) Beat(ctx context.Context, key, id string) (err error) {
	for range tries {
		if err = s.beat(ctx, key, id); !isUnreachable(err) {
			return err
		}
		select { // the library connects again
		case <-time.After(again):
		case <-ctx.Done():
			return err
		}
	}
	return err
}

func (s *store) beat(ctx context.Context, key, id string) error {
	l, ok := s.known(id)
	if !ok || l.in.isOver() {
		return lost("the session in which it began has expired")
	}
	at := s.now()
	_, _, err := s.multi(ctx, l.in, "renew "+s.record(key), &zk.CheckVersionRequest{Path: s.life(id), Version: anyVersion})
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return lost(lostLife)
	case err != nil:
		return over(err)
	}
	// The same session does not see less now. The record's version alone would not do: it may be
	// that of a record which was deleted and made again.
	n, err := s.get(ctx, l.in, s.record(key))
	if err != nil {
		return over(err)
	}
	if _, holder := n.entry(); holder != id {
		return lost(lostRecord)
	}
	s.change(id, func(one *life) { one.beat = max(one.beat, at) })
	return nil
}

// over returns election.ErrLost if the session in which something was asked about a life is over.
func over(err error) error {
	if errors.Is(err, errOver) {
		return fmt.Errorf("%w: %w", election.ErrLost, err)
	}
	return err
}

// End implements kv.Store.
func (s *store) End(ctx context.Context, id string) error {
	s.change(id, func(l *life) { l.ended = true })
	in, err := s.main()
	if err != nil {
		return err
	}
	if l, ok := s.known(id); ok && !l.in.isOver() {
		in = l.in
	}
	_, err = call(ctx, in, "delete "+s.life(id), func(c *zk.Conn) (struct{}, error) {
		return struct{}{}, c.Delete(s.life(id), anyVersion)
	})
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	s.drop(id)
	return nil
}

// tend deletes the lives that nobody has renewed in time, which the library keeps alive.
func (s *store) tend() {
	ticker := time.NewTicker(tending)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.ctx.Done():
			return
		}
		for _, id := range s.overdue() {
			s.tidy(s.ctx, id)
		}
	}
}

// overdue returns the lives that are to be deleted. While there is no connection, nobody can
// renew one; whoever wants to comes first afterwards.
func (s *store) overdue() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for id, l := range s.mu.lives {
		connected, since, _, _ := l.in.state()
		if connected && (l.ended || now-max(l.beat, since) > l.ttl) {
			ids = append(ids, id)
		}
	}
	return ids
}

// tidy deletes a life that nobody renews, if that is possible within a moment.
func (s *store) tidy(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, tidying)
	defer cancel()
	if err := s.End(ctx, id); err != nil {
		s.log.Debug("cannot delete a life that nobody renews", zap.String("life", id), zap.Error(err))
	}
}

// orphans returns those of these lives that belong to a session of this store, and are not known.
// Their requests were given up, or a restore has brought them back.
func (s *store) orphans(ids []string) (unknown []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if s.mu.lives[id] == nil && s.mu.tag != "" && strings.HasPrefix(id, s.mu.tag+".") {
			unknown = append(unknown, id)
		}
	}
	return unknown
}
