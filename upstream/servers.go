package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// Every is how often each host is looked at.
	Every = time.Second
	// lookTimeout bounds one look. A host that takes longer does not answer.
	lookTimeout = 3 * time.Second
)

// Probe looks at one host. Its methods are called by one goroutine.
type Probe interface {
	Look(ctx context.Context) Finding
	// Close ends the connection that Look keeps. The next Look opens another one.
	Close()
}

// Config is what Several needs.
type Config struct {
	Hosts []Host // in the order of preference
	Probe func(Host) Probe
	// Logger is for changes of the primary, and of what the other hosts are; it may be nil.
	Logger *zap.Logger
}

// Servers are the hosts. It is safe for concurrent use.
type Servers struct {
	hosts []Host
	probe func(Host) Probe // nil if there is a single host
	log   *zap.Logger

	looked chan struct{} // closed when each host has been looked at once

	mu struct {
		sync.Mutex
		found   []*Finding // by host
		states  []State    // by host
		since   []time.Time
		doubted []bool // by host: a connection to it has led to a standby
		past    *history
		tenure  *tenure // nil before the first primary
		serving bool    // the host of the tenure accepts writes
		unready bool    // that there is no primary was logged
	}
}

// tenure is the time of one primary.
type tenure struct {
	host     int
	timeline uint32
	since    time.Time
	ctx      context.Context
	end      context.CancelCauseFunc
}

// One returns a single host, which is the primary as long as the program runs.
func One(h Host) (*Servers, error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	s := &Servers{hosts: []Host{h}, looked: make(chan struct{})}
	s.mu.tenure, s.mu.serving = newTenure(0), true
	close(s.looked)
	return s, nil
}

// Several returns several hosts, whose primary Run or Look finds.
func Several(cfg Config) (*Servers, error) {
	if len(cfg.Hosts) < 2 {
		return nil, errors.New("upstream: fewer than two hosts")
	}
	for _, h := range cfg.Hosts {
		if err := h.check(); err != nil {
			return nil, err
		}
	}
	s := &Servers{hosts: cfg.Hosts, probe: cfg.Probe, log: cfg.Logger, looked: make(chan struct{})}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	n := len(s.hosts)
	s.mu.found, s.mu.past = make([]*Finding, n), newHistory()
	s.mu.states, s.mu.since, s.mu.doubted = make([]State, n), make([]time.Time, n), make([]bool, n)
	for i := range s.mu.states {
		s.mu.states[i] = Unknown
	}
	return s, nil
}

func newTenure(host int) *tenure {
	t := &tenure{host: host, since: time.Now()}
	t.ctx, t.end = context.WithCancelCause(context.Background())
	return t
}

// Primary returns the host to connect to. At first it waits until each host has been looked
// at. The error is a *NoPrimaryError if no host is known to accept writes.
func (s *Servers) Primary(ctx context.Context) (Primary, error) {
	select {
	case <-s.looked:
	case <-ctx.Done():
		return Primary{}, fmt.Errorf("wait for the first look at all hosts: %w", context.Cause(ctx))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.serving {
		return Primary{}, s.noPrimaryLocked()
	}
	t := s.mu.tenure
	p := Primary{Host: s.hosts[t.host], Tenure: t.ctx}
	if s.probe != nil {
		p.recheck = func() { s.recheck(t.host) }
	}
	return p, nil
}

// recheck makes the next look at a host use a new connection.
func (s *Servers) recheck(host int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.doubted[host] = true
}

// takeRecheck reports whether recheck was called for a host since the last call.
func (s *Servers) takeRecheck(host int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	doubted := s.mu.doubted[host]
	s.mu.doubted[host] = false
	return doubted
}

func (s *Servers) noPrimaryLocked() *NoPrimaryError {
	return &NoPrimaryError{Hosts: s.statusesLocked(), found: append([]*Finding(nil), s.mu.found...)}
}

// Run looks at the hosts until ctx ends, if there are several.
func (s *Servers) Run(ctx context.Context) {
	if s.probe != nil {
		s.each(func(host int, p Probe) { s.watch(ctx, host, p) })
	}
}

// Look looks at each host once, for a program that does not call Run.
func (s *Servers) Look(ctx context.Context) {
	if s.probe != nil {
		s.each(func(host int, p Probe) { s.look(ctx, host, p) })
	}
}

// each calls do for all hosts at once, and waits for the calls.
func (s *Servers) each(do func(host int, p Probe)) {
	var wg sync.WaitGroup
	for i, h := range s.hosts {
		wg.Go(func() {
			p := s.probe(h)
			defer p.Close()
			do(i, p)
		})
	}
	wg.Wait()
}

func (s *Servers) watch(ctx context.Context, host int, p Probe) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		s.look(ctx, host, p)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look looks at a host once, and records what it has found unless ctx has ended.
func (s *Servers) look(ctx context.Context, host int, p Probe) {
	bounded, cancel := context.WithTimeoutCause(ctx, lookTimeout, fmt.Errorf("no answer within %s", lookTimeout))
	defer cancel()
	if s.takeRecheck(host) {
		p.Close()
	}
	began := time.Now()
	f := p.Look(bounded)
	f.began, f.ended = began, time.Now()
	if f.Err != nil && bounded.Err() != nil {
		f.Err = context.Cause(bounded)
	}
	if ctx.Err() == nil {
		s.record(host, f)
	}
}

// record keeps a finding and draws the conclusions.
func (s *Servers) record(host int, f Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.found[host] = &f
	s.mu.past.learn(s.mu.found)
	current := s.currentLocked()
	chosen := choose(current, s.mu.past, s.mu.found)
	switch {
	case chosen == none:
		s.withoutPrimaryLocked(current)
	case chosen == current && s.mu.tenure.ctx.Err() == nil && s.mu.found[chosen].Timeline <= s.mu.tenure.timeline:
		if !s.mu.serving {
			s.log.Info("the primary accepts writes again", zap.String("host", s.hosts[chosen].Address))
		}
		s.mu.serving = true
	default:
		s.appointLocked(chosen)
	}
	if s.mu.serving {
		s.mu.past.setPrimary(chosen, s.mu.found[chosen])
		s.mu.tenure.timeline = s.mu.found[chosen].Timeline
		s.mu.unready = false
	}
	s.compareLocked()
	s.announceLocked()
}

// currentLocked returns the host that is, or was last, the primary; none before the first.
func (s *Servers) currentLocked() int {
	if s.mu.tenure == nil {
		return none
	}
	return s.mu.tenure.host
}

func (s *Servers) pictureLocked() picture {
	return picture{hosts: s.hosts, found: s.mu.found, past: s.mu.past, chosen: s.currentLocked(), serving: s.mu.serving}
}

// compareLocked notes since when each host is what it is, and logs what has changed. The primary
// itself has lines of its own.
func (s *Servers) compareLocked() {
	p := s.pictureLocked()
	for i, was := range s.mu.states {
		state, is := p.describe(i)
		if state == was || state == Unknown { // it will be looked at in a moment
			continue
		}
		s.mu.states[i], s.mu.since[i] = state, time.Now()
		level := zap.InfoLevel
		switch {
		case state == IsPrimary, state == Standby && was == Unknown:
			continue
		case state != Standby:
			level = zap.WarnLevel
		}
		s.log.Log(level, "a host has changed", zap.String("host", s.hosts[i].Address), zap.String("state", string(state)),
			zap.String("was", string(was)), zap.String("is", s.hosts[i].Address+" "+is))
	}
}

// announceLocked lets Primary return once each host has been looked at.
func (s *Servers) announceLocked() {
	for _, f := range s.mu.found {
		if f == nil {
			return
		}
	}
	select {
	case <-s.looked:
	default:
		close(s.looked)
	}
}

// withoutPrimaryLocked records that no host accepts writes.
func (s *Servers) withoutPrimaryLocked(current int) {
	s.mu.serving = false
	if current != none {
		if s.mu.found[current].Standby {
			s.mu.tenure.end(&DemotedError{Host: s.hosts[current].Address})
		} else if l := s.mu.past.newest(s.mu.past.system); l != nil && l.timeline > s.mu.tenure.timeline {
			s.mu.tenure.end(&DemotedError{Host: s.hosts[current].Address, Timeline: l.timeline})
		}
	}
	for _, f := range s.mu.found {
		if f == nil {
			return
		}
	}
	if !s.mu.unready {
		s.mu.unready = true
		s.log.Warn("no primary", zap.NamedError("problem", s.noPrimaryLocked()))
	}
}

// appointLocked begins the tenure of another host, or another one of the same host, and ends the
// last one.
func (s *Servers) appointLocked(host int) {
	fields := []zap.Field{zap.String("host", s.hosts[host].Address), zap.Uint32("timeline", s.mu.found[host].Timeline)}
	last := s.mu.tenure
	s.mu.tenure, s.mu.serving = newTenure(host), true
	switch {
	case last == nil:
		s.log.Info("primary found", fields...)
	case last.host == host: // it has been a standby, or its name leads to one that was promoted
		last.end(&DemotedError{Host: s.hosts[host].Address, By: s.hosts[host].Address, Timeline: s.mu.found[host].Timeline})
		s.log.Info("the primary accepts writes again", fields...)
	default:
		last.end(&DemotedError{Host: s.hosts[last.host].Address, By: s.hosts[host].Address})
		s.log.Warn("the primary has changed", append(fields, zap.String("from", s.hosts[last.host].Address))...)
	}
	if s.mu.found[host].Standbys == "" {
		s.log.Warn(asynchronous)
	}
}
