package faults

import (
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// logged returns a logger, and a function that returns the messages of its lines so far.
func logged() (*zap.Logger, func() []string) {
	core, lines := observer.New(zap.DebugLevel)
	return zap.New(core), func() []string {
		var all []string
		for _, l := range lines.All() {
			all = append(all, l.Message)
		}
		return all
	}
}

func TestASeriesIsAFewLines(t *testing.T) {
	t.Parallel()
	log, lines := logged()
	s := NewSeries(log, "broken", time.Hour)
	s.Passed()
	for range 100 {
		s.Failed()
	}
	if got := lines(); !slices.Equal(got, []string{"broken"}) {
		t.Errorf("after 100 failures: %q", got)
	}
	s.logged = s.logged.Add(-time.Hour)
	s.Failed()
	s.Failed()
	if _, count := s.Now(); count != 102 {
		t.Errorf("counted %d failures", count)
	}
	s.Passed()
	s.Passed()
	s.Failed()
	if got, want := lines(), []string{"broken", "broken (still)", "broken (over)", "broken"}; !slices.Equal(got, want) {
		t.Errorf("the log has %q, want %q", got, want)
	}
}

func TestAPlaceHasOneFault(t *testing.T) {
	t.Parallel()
	log, lines := logged()
	r := NewRegister(log, time.Hour)
	denied, silent := &Fault{Kind: LeaseDenied, Problem: "p", Remedy: "r"}, &Fault{Kind: LeaseService, Problem: "q"}
	r.Report("there", nil)
	r.Report("there", denied)
	r.Report("there", denied)
	r.Report("elsewhere", silent)
	if all := r.Active(); len(all) != 2 || all[1].Where != "there" || all[1].Count != 2 || all[1].Fault != *denied {
		t.Errorf("lasting: %+v", all)
	}
	r.Report("there", silent)
	r.Report("there", nil)
	if got := r.Places(); !slices.Equal(got, []string{"elsewhere"}) {
		t.Errorf("faults at %q", got)
	}
	if got, want := lines(), []string{"fault", "fault", "fault (over)", "fault", "fault (over)"}; !slices.Equal(got, want) {
		t.Errorf("the log has %q, want %q", got, want)
	}
}

// TestOneCauseIsOneFault: while Postgres as a whole does not answer, what it said before, or a database did, is not listed
// next to that. Other kinds are, and what was left out is again as soon as its cause is gone, until a look shows otherwise.
func TestOneCauseIsOneFault(t *testing.T) {
	t.Parallel()
	r := NewRegister(zap.NewNop(), time.Hour)
	listed := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, f := range r.Active() {
			got = append(got, f.Where)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the faults are at %q, want %q", when, got, want)
		}
	}
	shop, mail := InDatabase("shop"), InDatabase("mail")
	r.Report(shop, &Fault{Kind: Upstream, Problem: "the connection was cut"})
	r.Report(mail, &Fault{Kind: Schema, Problem: "there is none"})
	listed("in two databases", mail, shop)
	r.Report(InControl, &Fault{Kind: Upstream, Problem: "the database system is shutting down [57P03]"})
	listed("it lets nobody log in", InControl, mail)
	r.Report(InServer, &Fault{Kind: Upstream, Problem: "connection refused"})
	listed("it is gone", mail, InServer)
	r.Report(InServer, nil)
	listed("it answers again, and nobody has logged in yet", InControl, mail)
	r.Report(InControl, &Fault{Kind: ControlLogin, Problem: "the password is wrong"})
	listed("it lets the control role not log in", InControl, mail, shop)
}

// TestASeriesThatFailsByTurnsIsAFewLines: what fails and works again and again, many times a second.
func TestASeriesThatFailsByTurnsIsAFewLines(t *testing.T) {
	t.Parallel()
	log, lines := logged()
	s := NewSeries(log, "broken", time.Hour)
	for range 100 {
		s.Failed()
		s.Passed()
	}
	if got := lines(); len(got) != 2*mostTurns {
		t.Errorf("the log has %d lines: %q", len(got), got)
	}
	s.Failed()
	s.logged = s.logged.Add(-time.Hour)
	s.Failed() // it lasts: that is logged, and that it ends
	s.Passed()
	if got := lines()[2*mostTurns:]; !slices.Equal(got, []string{"broken (still)", "broken (over)"}) {
		t.Errorf("the log has %q", got)
	}
	s.from = s.from.Add(-time.Hour)
	s.Failed()
	if got := lines()[2*mostTurns+2:]; !slices.Equal(got, []string{"broken"}) || s.unlogged != 0 {
		t.Errorf("in the next interval the log has %q, and %d are unlogged", got, s.unlogged)
	}
}
