package upstream

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencepost/fencepost/fencing"
)

// two returns two hosts that were not looked at, and what they log.
func two(t *testing.T) (*Servers, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	s, err := Several(Config{Hosts: []Host{{Address: "a:1"}, {Address: "b:2"}}, Probe: func(Host) Probe { return nil }, Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	return s, logs
}

// now returns the primary.
func now(t *testing.T, s *Servers) Primary {
	t.Helper()
	p, err := s.Primary(t.Context())
	if err != nil {
		t.Fatalf("no primary: %v", err)
	}
	return p
}

func demotion(p Primary) string {
	var demoted *DemotedError
	if !errors.As(context.Cause(p.Tenure), &demoted) {
		return ""
	}
	return demoted.Error()
}

func TestATenureEndsWithTheNextPrimary(t *testing.T) {
	t.Parallel()
	s, logs := two(t)
	s.record(0, *primaryOf(1))
	s.record(1, *standby)
	first := now(t, s)
	if first.Address != "a:1" || demotion(first) != "" {
		t.Fatalf("the primary is %s, %q", first.Address, demotion(first))
	}
	s.record(0, *silent)
	if p, err := s.Primary(t.Context()); err == nil {
		t.Errorf("while the primary is silent new connections lead to %s", p.Address)
	}
	if demotion(first) != "" {
		t.Error("the tenure ended because the host was silent")
	}
	s.record(0, *primaryOf(1))
	if again := now(t, s); again.Tenure != first.Tenure {
		t.Error("a new tenure began when the host answered again")
	}
	s.record(0, *silent)
	s.record(1, *primaryOf(2))
	if p := now(t, s); p.Address != "b:2" || demotion(first) != "a:1 is no longer the primary, b:2 is" {
		t.Errorf("after the promotion the primary is %s, and the first one ended with %q", p.Address, demotion(first))
	}
	s.record(0, *primaryOf(1)) // it was frozen, and knows nothing
	if p := now(t, s); p.Address != "b:2" {
		t.Errorf("the former primary came back and is taken for the primary: %s", p.Address)
	}
	if w := s.Warnings(); len(w) != 2 || !strings.Contains(w[0], "a:1 is a former primary") || !strings.Contains(w[1], "synchronous_standby_names") {
		t.Errorf("warnings: %q", w)
	}
	if n := logs.FilterMessage("the primary has changed").Len(); n != 1 {
		t.Errorf("%d lines about the change: %v", n, logs.All())
	}
}

func TestAStandbyEndsItsOwnTenure(t *testing.T) {
	t.Parallel()
	s, _ := two(t)
	s.record(1, *standby)
	s.record(0, *primaryOf(1))
	first := now(t, s)
	s.record(0, *standby)
	if got := demotion(first); got != "a:1 has become a standby" {
		t.Errorf("the tenure ended with %q", got)
	}
	s.record(0, *primaryOf(3))
	if p := now(t, s); p.Address != "a:1" || p.Tenure == first.Tenure {
		t.Errorf("promoted again, it is %s, and its tenure is the old one: %v", p.Address, p.Tenure == first.Tenure)
	}
}

func TestWithoutAPrimary(t *testing.T) {
	t.Parallel()
	s, _ := two(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s.record(0, *primaryOf(1))
	if _, err := s.Primary(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("before each host was looked at: %v", err)
	}
	s.record(0, *standby)
	s.record(1, *silent)
	_, err := s.Primary(t.Context())
	var unknown *NoPrimaryError
	if !errors.As(err, &unknown) {
		t.Fatalf("%v", err)
	}
	if r := unknown.Refusal(); r.SQLState != "57P03" || r.Detail != "a:1 is a standby; b:2 cannot be looked at: no answer." {
		t.Errorf("a client is told %+v", r)
	}
	refusal := &fencing.Refusal{SQLState: "ZF004", Message: "wrong password"}
	s.record(1, Finding{Err: refusal, Refused: true})
	if _, err := s.Primary(t.Context()); errors.Is(err, refusal) {
		t.Error("one wrong password counts, though the other host is a standby")
	} else if r := err.(*NoPrimaryError).Remedy(); !strings.HasPrefix(r, "Let Fencepost's control role log in at b:2, which runs. Promote no standby") {
		t.Errorf("the remedy is %q", r)
	}
	s.record(0, Finding{Err: refusal, Refused: true})
	if _, err := s.Primary(t.Context()); !errors.Is(err, refusal) {
		t.Errorf("wrong passwords everywhere: %v", err)
	}
}

func TestASingleHostIsThePrimary(t *testing.T) {
	t.Parallel()
	s, err := One(Host{Address: "/tmp/.s.PGSQL.5432"})
	if err != nil {
		t.Fatal(err)
	}
	s.Run(t.Context()) // returns
	s.Look(t.Context())
	if p := now(t, s); p.Network() != "unix" || s.Statuses() != nil || s.Warnings() != nil {
		t.Errorf("%+v, %v, %v", p, s.Statuses(), s.Warnings())
	}
	if _, err := One(Host{}); err == nil {
		t.Error("a host without an address was accepted")
	}
}

// TestAHostThatChangesIsLogged, and its state has its own time.
func TestAHostThatChangesIsLogged(t *testing.T) {
	t.Parallel()
	s, logs := two(t)
	s.record(0, *primaryOf(1))
	s.record(1, *standby)
	if n := logs.FilterMessage("a host has changed").Len(); n != 0 {
		t.Errorf("%d lines about hosts that are what they should be", n)
	}
	began := *s.Statuses()[0].Since
	for _, step := range []struct {
		host  int
		found *Finding
		want  string // the host, what it was and what it is; "" if there is no line
	}{
		{1, silent, "b:2 standby unreachable"},
		{1, silent, ""},
		{1, standby, "b:2 unreachable standby"},
		{1, primaryOf(2), ""}, // the other one was not looked at since
		{0, primaryOf(1), "a:1 primary former_primary"},
		{0, standby, "a:1 former_primary standby"},
		{0, &Finding{System: "8"}, "a:1 standby other_system"},
	} {
		logs.TakeAll()
		s.record(step.host, *step.found)
		got := ""
		for _, line := range logs.FilterMessage("a host has changed").All() {
			f := line.ContextMap()
			got += f["host"].(string) + " " + f["was"].(string) + " " + f["state"].(string)
		}
		if got != step.want {
			t.Errorf("the log says %q, want %q", got, step.want)
		}
		if step.found.Timeline == 1 && !s.Statuses()[0].Since.After(began) {
			t.Error("a former primary is one since it was the primary")
		}
	}
}

// TestANewerTimelineEndsATenure, though its primary cannot be used yet.
func TestANewerTimelineEndsATenure(t *testing.T) {
	t.Parallel()
	for name, found := range map[string]*Finding{"of a standby": following(2), "of a read-only primary": readOnly(2)} {
		s, _ := two(t)
		s.record(0, *primaryOf(1))
		s.record(1, *standby)
		first := now(t, s)
		s.record(1, *found)
		if got := demotion(first); got != "a:1 is no longer the primary, timeline 2 has begun elsewhere" {
			t.Errorf("%s: the tenure ended with %q", name, got)
		}
		s.record(1, *silent)
		s.record(0, *primaryOf(1))
		_, err := s.Primary(t.Context())
		var unknown *NoPrimaryError
		if !errors.As(err, &unknown) {
			t.Fatalf("%s: the former primary is used again: %v", name, err)
		}
		if r := unknown.Refusal(); !strings.Contains(r.Hint, "To go back to a:1") || !strings.Contains(r.Detail, "timeline 1, but 2 was seen at b:2") {
			t.Errorf("%s: a client is told %+v", name, r)
		}
		s.record(0, *primaryOf(3))
		if p := now(t, s); p.Address != "a:1" || p.Tenure.Err() != nil {
			t.Errorf("%s: promoted again, it is %+v", name, p)
		}
	}
}

// TestANewerTimelineAtTheSameName ends the tenure: the name leads to a server that was promoted, and
// sessions at the other one do not count.
func TestANewerTimelineAtTheSameName(t *testing.T) {
	t.Parallel()
	s, _ := two(t)
	s.record(0, *at("x", 1))
	s.record(1, *standby)
	first := now(t, s)
	s.record(0, *silent)
	s.record(0, *at("y", 2))
	if got := demotion(first); got != "a:1 leads to the primary of timeline 2 now" {
		t.Errorf("the tenure ended with %q", got)
	}
	second := now(t, s)
	s.record(1, *at("x", 1))
	if p := now(t, s); p.Address != "a:1" || p.Tenure != second.Tenure || s.Statuses()[1].State != FormerPrimary {
		t.Errorf("the primary is %+v; %+v", p, s.Statuses())
	}
}

// TestAFormerPrimaryThatWasNotLookedAtSince, or that is read-only, is not said to accept writes.
func TestAFormerPrimaryThatWasNotLookedAtSince(t *testing.T) {
	t.Parallel()
	s, logs := two(t)
	s.record(1, *standby)
	s.record(0, *primaryOf(1))
	s.record(1, *primaryOf(2))
	if v := s.Statuses()[0]; v.State != Unknown || v.Is != "was not looked at since timeline 2 was seen at b:2" {
		t.Errorf("before the next look: %+v", v)
	}
	if n := logs.FilterMessage("a host has changed").Len(); n != 0 || len(s.Warnings()) != 1 {
		t.Errorf("%d lines about it: %v; warnings %q", n, logs.All(), s.Warnings())
	}
	s.record(0, *primaryOf(1))
	if v := s.Statuses()[0]; v.State != FormerPrimary {
		t.Errorf("after the next look: %+v", v)
	}
	s.record(0, *readOnly(1))
	if v := s.Statuses()[0]; v.State != ReadOnly || !strings.HasPrefix(v.Is, "is a former primary, read-only (timeline 1, but 2 was seen at b:2)") {
		t.Errorf("read-only: %+v", v)
	}
}

// counted is a probe that counts how often its connection was closed.
type counted struct{ closed int }

func (c *counted) Look(context.Context) Finding { return *primaryOf(1) }
func (c *counted) Close()                       { c.closed++ }

// TestAConnectionThatLedToAStandby: the next look at that host uses a new connection.
func TestAConnectionThatLedToAStandby(t *testing.T) {
	t.Parallel()
	s, _ := two(t)
	s.record(0, *primaryOf(1))
	s.record(1, *standby)
	r := now(t, s).LedToStandby()
	if r == nil || r.SQLState != "57P03" || !strings.Contains(r.Detail, "a:1") {
		t.Fatalf("the client is told %+v", r)
	}
	var a, b counted
	for range 2 {
		s.look(t.Context(), 0, &a)
	}
	s.look(t.Context(), 1, &b)
	if a.closed != 1 || b.closed != 0 {
		t.Errorf("the connection of the looks was closed %d times, that to the other host %d times", a.closed, b.closed)
	}
	one, err := One(Host{Address: "a:1"})
	if err != nil {
		t.Fatal(err)
	}
	if r := now(t, one).LedToStandby(); r != nil {
		t.Errorf("a single host may be a standby, but the client is told %+v", r)
	}
}
