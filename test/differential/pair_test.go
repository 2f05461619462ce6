package differential

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/wiretest"
)

// pair is two databases: one for direct connections, and one behind the proxy.
type pair struct {
	plain, fenced *database
	crashes       int // of the server, before the databases were made
}

func newPair(t *testing.T, h *cluster, as standing) *pair {
	t.Helper()
	crashes, err := h.PG.Crashes()
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{newDatabase(t, h, unfenced), newDatabase(t, h, as), crashes}
	if _, err := p.fenced.candidacy("w").TryGrant(); err != nil {
		t.Fatal(err)
	}
	if as == guarded {
		p.plain.guards = passing
		if err := p.plain.rebuild(); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// compare runs s in both databases, which are in their initial state. diff is "" if the
// outcomes do not differ.
func (p *pair) compare(s script) (want, got outcome, diff string, err error) {
	return p.compareWith(s, func(like []seen) (outcome, error) { return p.fenced.proxied(s, like, nil) })
}

// compareWith is compare with another way to run s as a leader. It gets what the client had seen
// at the end of each wait on Postgres.
func (p *pair) compareWith(s script, fenced func(like []seen) (outcome, error)) (want, got outcome, diff string, err error) {
	if want, err = p.plain.direct(s); err != nil {
		return want, got, "", err
	}
	if got, err = fenced(want.seen); err != nil {
		return want, got, "", err
	}
	diff, err = difference(&want, &got)
	return want, got, diff, errors.Join(err, p.plain.tidy(), p.fenced.tidy())
}

// differs is compare, except that it repeats scripts to which Postgres itself does not
// always reply in the same way.
func (p *pair) differs(s script) (want, got outcome, diff string, err error) {
	want, got, diff, err = p.compare(s)
	if diff == "" || err != nil {
		return want, got, diff, err
	}
	if struckTwice(s, got.all) {
		return want, got, "", nil
	}
	for range 2 {
		again, err := p.plain.direct(s)
		if err != nil {
			return want, got, "", err
		}
		other, err := difference(&want, &again)
		if err := errors.Join(err, p.plain.tidy()); other != "" || err != nil {
			return want, got, "", err
		}
	}
	return want, got, diff, nil
}

// struckTwice reports whether more statements were cancelled than the script has cancelled. For one
// cancel request, or at the end of statement_timeout, Postgres signals the backend and then its
// process group. On a loaded machine, the second signal may find the backend in a later statement,
// which was sent before the answer.
func struckTwice(s script, got []wiretest.Message) bool {
	left := 0
	for i := range s.steps {
		if s.steps[i].name == "Cancel" {
			left++
		}
	}
	for _, l := range lines(got) {
		if strings.Contains(l, ` 57014 "canceling statement due to user request"`) {
			left--
		}
	}
	return left < 0
}

// report formats a failing script with its results.
func report(s script, want, got outcome, diff string) string {
	return fmt.Sprintf("%s\nthe script:\n%s\nPostgres:\n  %s\nFencepost:\n  %s", diff, s,
		strings.Join(lines(want.all), "\n  "), strings.Join(lines(got.all), "\n  "))
}
