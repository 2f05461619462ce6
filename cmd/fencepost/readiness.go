package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// readyFor is for how long an answer of /readyz counts. The admin address has
	// no authentication: whoever asks more often costs Postgres nothing.
	readyFor = time.Second
	// warnedFor is the same for the warnings, which are asked of each database.
	warnedFor = time.Minute
	// warningsTimeout bounds the question for warnings.
	warningsTimeout = time.Second
)

// remembered is an answer that counts for a while. One asks at a time; who comes
// meanwhile waits for the same answer.
type remembered[T any] struct {
	mu    sync.Mutex
	until time.Time
	last  T
}

// get returns the last answer, or a new one if that is too old. The question does
// not end with whoever asked it first: others wait for the answer.
func (r *remembered[T]) get(ctx context.Context, counts time.Duration, ask func(context.Context) T) T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().After(r.until) {
		r.last = ask(context.WithoutCancel(ctx))
		r.until = time.Now().Add(counts)
	}
	return r.last
}

// databases are those that this proxy has opened.
type databases struct {
	mu   sync.Mutex
	open map[string]warner
}

// warner is a store.Store, as far as warnings go.
type warner interface {
	Warnings(ctx context.Context) ([]string, error)
}

func (f *databases) add(database string, w warner) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil {
		f.open = make(map[string]warner)
	}
	f.open[database] = w
}

func (f *databases) remove(database string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, database)
}

// warnings asks each database. One that does not answer has none: what is wrong
// with it is told elsewhere.
func (f *databases) warnings(ctx context.Context) []string {
	f.mu.Lock()
	open := maps.Clone(f.open)
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, warningsTimeout)
	defer cancel()
	var all []string
	for _, database := range slices.Sorted(maps.Keys(open)) {
		list, err := open[database].Warnings(ctx)
		if err != nil {
			continue
		}
		for _, w := range list {
			all = append(all, "database "+database+": "+w)
		}
	}
	return all
}

// tryUpstream connects to Postgres as workers' connections do, as far as TLS.
func (s *serving) tryUpstream(ctx context.Context) error {
	deadline := time.Now().Add(time.Second)
	dialer := net.Dialer{Deadline: deadline}
	conn, err := dialer.DialContext(ctx, "tcp", s.cfg.Upstream.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if s.upstream == nil {
		return nil
	}
	_ = conn.SetDeadline(deadline)
	return s.upstream.Try(conn)
}

// readiness asks whether Postgres can be reached. Trouble with the election is
// told, and does not make the proxy unready.
func (s *serving) readiness(ctx context.Context) Readiness {
	r := Readiness{Upstream: "ok", Election: "ok", Draining: s.draining.Load()}
	err := s.reached.get(ctx, readyFor, s.tryUpstream)
	if err != nil {
		r.Upstream = err.Error()
	} else {
		r.Warnings = s.warned.get(ctx, warnedFor, s.fences.warnings)
	}
	if s.consul != nil {
		if err := s.consul.Healthy(); err != nil {
			r.Election = err.Error()
		}
	}
	for _, res := range s.elections.Resources() {
		if res.WatchError != nil {
			r.Election = fmt.Sprintf("resource %s of database %s: %v", res.Resource, res.Database, res.WatchError)
		}
	}
	r.Ready = err == nil && !r.Draining
	return r
}
