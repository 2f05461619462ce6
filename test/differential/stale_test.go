package differential

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestSafetyStaleTwin runs scripts as a worker that is superseded at a random point.
// Once the grant to its successor has returned, nothing in the database changes any
// more, whatever was in progress. The worker gets the replies that it would get from
// Postgres if Postgres ended the connection at that point.
func TestSafetyStaleTwin(t *testing.T) {
	t.Parallel()
	twins(t, (*pair).stale)
}

// TestSafetyFollowerTwin runs scripts as a worker that does not lead: nothing in the
// database changes, and the connection lasts as long as on Postgres.
func TestSafetyFollowerTwin(t *testing.T) {
	t.Parallel()
	twins(t, (*pair).follows)
}

// ordinaryTwins is how many scripts of each kind an ordinary run covers.
const ordinaryTwins = 50

// twins runs random scripts, a quarter as many as TestScripts if a number is
// requested.
func twins(t *testing.T, twin func(p *pair, s script, r *rand.Rand) error) {
	n := ordinaryTwins
	if *count > 0 {
		n = max(*count/4, 1)
	}
	eachMajor(t, func(t *testing.T, major int) {
		h := newCluster(t, major)
		began := time.Now()
		var next, ran, failures atomic.Int64
		var wg sync.WaitGroup
		for range 2 {
			p := newPair(t, h, fenced)
			wg.Go(func() {
				for failures.Load() == 0 && !over(began) {
					at := next.Add(1) - 1
					if at >= int64(n) {
						return
					}
					seed := firstSeed() + uint64(at)
					r := rand.New(rand.NewPCG(seed, 2))
					s := generateAs(seed, r.IntN(3) == 0)
					p.afterCrash(t)
					if err := twin(p, s, r); err != nil && p.afterCrash(t) {
						t.Logf("seed %d, or a concurrent one: the server crashed", seed)
					} else if err != nil {
						failures.Add(1)
						t.Errorf("seed %d: %v\nthe script:\n%s", seed, err, s)
						s.about = fmt.Sprintf("seed %d on PostgreSQL %d, %s\n%v\n", seed, major, t.Name(), err)
						keepScript(t, fmt.Sprintf("found-%s-%d-%d.txt", strings.Split(t.Name(), "/")[0], major, seed), s.String())
					}
					ran.Add(1)
				}
			})
		}
		wg.Wait()
		t.Logf("PostgreSQL %d: %d scripts in %v, seeds from %d on", major, ran.Load(), time.Since(began).Round(time.Millisecond), firstSeed())
		if ran.Load() == 0 {
			t.Error("no script was run")
		}
	})
}

// stale runs s as a worker that is superseded before a random step, during it or while
// it waits.
func (p *pair) stale(s script, r *rand.Rand) error {
	s.free = s.free || s.namesEpochs()
	want, err := p.wanted(s)
	if err != nil {
		return err
	}
	db := p.fenced
	if _, err := db.candidacy("w").TryGrant(); err != nil {
		return err
	}
	next := db.successor()
	at, beside := r.IntN(len(s.steps)), r.IntN(3) > 0
	late := time.Duration(r.IntN(3000)) * time.Microsecond
	got, err := db.run(s, want.seen, func(i int) {
		switch {
		case i != at:
		case beside:
			go func() {
				time.Sleep(late)
				next.takeOver()
			}()
		default:
			next.takeOver()
		}
	})
	if err := errors.Join(next.works(), err); err != nil {
		return err
	}
	if err := db.nothingSince(next.found); err != nil {
		return fmt.Errorf("superseded at step %d: %w", at, err)
	}
	if err := refusedInPlace(lines(want.all), lines(got.all)); err != nil && !s.free {
		return fmt.Errorf("superseded at step %d: %w\nPostgres:\n  %s\nFencepost:\n  %s", at, err,
			strings.Join(lines(want.all), "\n  "), strings.Join(lines(got.all), "\n  "))
	}
	return db.tidy()
}

// refusedInPlace checks that the worker got Postgres' replies up to where it was
// refused, then the refusal, and nothing more.
func refusedInPlace(want, got []string) error {
	const told = `ErrorResponse FATAL ZF001 "`
	for i, g := range got {
		switch {
		case strings.HasPrefix(g, told):
			if i != len(got)-1 {
				return fmt.Errorf("it continues after the refusal with %s", got[i+1])
			}
			return nil
		case i < len(want) && g != want[i] && strings.Contains(g, " 57014 "):
			return nil // a cancel, or the second signal of one (see struckTwice), met another statement
		case isLost(g) && i == len(got)-1:
			return nil
		case i >= len(want) && !strings.HasPrefix(g, "ErrorResponse") && strings.HasPrefix(got[len(got)-1], told):
			// Without a Sync, Postgres keeps its replies back; the refusal lets them go.
		case i >= len(want):
			return fmt.Errorf("message %d is %s, where Postgres sends nothing more", i, g)
		case !*words && strings.Fields(g)[0] == strings.Fields(want[i])[0] && !strings.Contains(g, "ZF0"):
			continue // at most a difference in wording
		case g != want[i]:
			return fmt.Errorf("message %d is %s, want %s", i, g, want[i])
		}
	}
	if len(got) < len(want) {
		return fmt.Errorf("it ends without a message, where Postgres sends %s", want[len(got)])
	}
	return nil
}

// follows runs s as a worker that never leads, while another one does.
func (p *pair) follows(s script, _ *rand.Rand) error {
	db := p.fenced
	leader := db.candidacy("leader")
	if _, err := leader.TryGrant(); err != nil {
		return err
	}
	db.candidacy("w")
	got, err := db.run(s, nil, nil)
	if err != nil {
		return err
	}
	if err := db.atRest(); err != nil {
		return err
	}
	if !db.now.same(db.fresh) {
		return fmt.Errorf("a worker that does not lead has written. Before:\n%s\nat the end:\n%s", db.fresh, db.now)
	}
	for _, l := range lines(got.all) {
		if strings.HasPrefix(l, "ErrorResponse FATAL ZF") && !s.namesEpochs() { // a client that names an old epoch is superseded
			return fmt.Errorf("a follower's connection was ended: %s", l)
		}
	}
	for _, h := range db.heard {
		if !strings.HasPrefix(h, "ch beside ") {
			return fmt.Errorf("a notification of a worker that does not lead was received: %s", h)
		}
	}
	return db.tidy()
}

// wanted returns what Postgres replies to a script, nothing if that cannot be compared.
func (p *pair) wanted(s script) (transcript, error) {
	if s.free {
		return transcript{}, nil
	}
	want, err := p.plain.direct(s)
	if err != nil {
		return transcript{}, err
	}
	return want.transcript, p.plain.tidy()
}

// atRest waits until all backends of the workers have ended, and reads the contents.
func (r *database) atRest() error {
	for until := time.Now().Add(patience); ; {
		var n int
		if err := r.ask(&n, "select count(*) from pg_stat_activity where datname = current_database() and usename = 'app'"); err != nil {
			return err
		}
		if n == 0 {
			return r.look()
		}
		if time.Now().After(until) {
			return errors.New("a worker's backend does not end:\n" + r.witness())
		}
		time.Sleep(time.Millisecond)
	}
}
