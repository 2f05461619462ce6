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
	if p := now(t, s); p.Network() != "unix" || s.Views() != nil || s.Warnings() != nil || !s.OnSocket() {
		t.Errorf("%+v, %v, %v", p, s.Views(), s.Warnings())
	}
	if _, err := One(Host{}); err == nil {
		t.Error("a host without an address was accepted")
	}
}
