package renewal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost/fencepost/election"
)

// clock is the time in a synctest bubble.
func clock() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}

// after answers a request after a while.
func after(d time.Duration, answer error) Request {
	return func(ctx context.Context) error {
		wait := time.NewTimer(d)
		defer wait.Stop()
		select {
		case <-wait.C:
			return answer
		case <-ctx.Done():
			return fmt.Errorf("no answer: %w", ctx.Err())
		}
	}
}

// counted counts the requests that are sent.
func counted(n *atomic.Int64, request Request) Request {
	return func(ctx context.Context) error {
		n.Add(1)
		return request(ctx)
	}
}

// standing answers no request whose number is below good.
func standing(n *atomic.Int64, good int64, request Request) Request {
	return func(ctx context.Context) error {
		if n.Add(1) < good {
			<-ctx.Done()
			return ctx.Err()
		}
		return request(ctx)
	}
}

const ttl = 10 * time.Second

func renew(t *testing.T, l *Leases, extend, confirm Request) (took time.Duration, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	began := time.Now()
	err = l.Renew(ctx, "lease", extend, confirm)
	return time.Since(began), err
}

func TestARenewalTakesOneRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(4, clock())
		l.Begin("lease", ttl)
		if took, err := renew(t, l, after(1500*time.Millisecond, nil), after(1500*time.Millisecond, nil)); err != nil || took != 1500*time.Millisecond {
			t.Errorf("it took %v and ended with %v", took, err)
		}
	})
}

func TestOnlyWhatWasNotAnsweredIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(4, clock())
		l.Begin("lease", ttl)
		var extends, reads atomic.Int64
		took, err := renew(t, l, counted(&extends, after(10*time.Millisecond, nil)), standing(&reads, 3, after(10*time.Millisecond, nil)))
		if err != nil || took != 1010*time.Millisecond {
			t.Errorf("it took %v and ended with %v", took, err)
		}
		if extends.Load() != 1 || reads.Load() != 3 {
			t.Errorf("%d requests to extend and %d reads were sent", extends.Load(), reads.Load())
		}
	})
}

func TestWhatFailsIsRepeatedUnlessItIsDefinite(t *testing.T) {
	down := errors.New("nobody can be reached")
	for name, c := range map[string]struct {
		err   error
		sends int64
		took  time.Duration
	}{
		"lost":    {fmt.Errorf("%w: taken", election.ErrLost), 1, 0},
		"denied":  {&election.DeniedError{Err: errors.New("no")}, 1, 0},
		"failing": {down, 4, 1500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := New(4, clock())
			l.Begin("lease", ttl)
			var reads atomic.Int64
			took, err := renew(t, l, after(time.Minute, nil), counted(&reads, after(0, c.err)))
			if !errors.Is(err, c.err) || reads.Load() != c.sends || took != c.took {
				t.Errorf("%s: %d reads, %v, %v", name, reads.Load(), took, err)
			}
		})
	}
}

func TestTheErrorSaysMoreThanThatTheTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(4, clock())
		l.Begin("lease", ttl)
		var reads atomic.Int64
		_, err := renew(t, l, after(0, nil), func(ctx context.Context) error {
			if reads.Add(1) == 3 {
				return errors.New("no leader")
			}
			return after(time.Minute, nil)(ctx)
		})
		if err == nil || !strings.Contains(err.Error(), "no leader") {
			t.Errorf("it ended with %v", err)
		}
		if _, err = renew(t, l, after(0, nil), after(time.Minute, nil)); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer") {
			t.Errorf("without any answer it ended with %v", err)
		}
	})
}

// A holder that cannot confirm its lease lets it go, and goes on when it can confirm it again.
func TestALeaseThatIsNotConfirmedIsNotExtendedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(4, clock())
		l.Begin("lease", ttl)
		var extends, last atomic.Int64
		began := time.Now()
		extend := func(context.Context) error {
			extends.Add(1)
			last.Store(int64(time.Since(began)))
			return nil
		}
		for time.Since(began) < 5*ttl {
			if _, err := renew(t, l, extend, after(time.Minute, nil)); err == nil {
				t.Fatal("a renewal succeeded that no read has confirmed")
			}
			time.Sleep(time.Second)
		}
		if time.Duration(last.Load()) >= ttl || extends.Load() == 0 {
			t.Errorf("%d requests to extend were sent, the last %v after the lease was confirmed", extends.Load(), time.Duration(last.Load()))
		}
		before := extends.Load()
		if _, err := renew(t, l, extend, after(time.Second, nil)); err != nil || extends.Load() != before+1 {
			t.Errorf("when it is confirmed again: %v, and %d requests to extend", err, extends.Load()-before)
		}
	})
}

// The path is too slow for one request after the other, but not for both at once.
func TestALateReadMakesTheNextRenewalOneRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(4, clock())
		l.Begin("lease", ttl)
		time.Sleep(2 * ttl)
		slow := after(1500*time.Millisecond, nil)
		if _, err := renew(t, l, slow, slow); err == nil {
			t.Error("two requests, one after the other, took less time than they take")
		}
		if _, err := renew(t, l, slow, slow); err != nil {
			t.Errorf("the next renewal ended with %v", err)
		}
	})
}

func TestALeaseThatIsNotKnownIsReadFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(4, clock())
		l.Begin("lease", ttl)
		l.Forget("lease")
		var extends atomic.Int64
		if _, err := renew(t, l, counted(&extends, after(0, nil)), after(0, election.ErrLost)); !errors.Is(err, election.ErrLost) || extends.Load() != 0 {
			t.Errorf("%v, and %d requests to extend", err, extends.Load())
		}
	})
}
