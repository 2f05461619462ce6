package operator_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var ops = operator.Orderer{AskedBy: "ops@host", Reason: "drill"}

// ordered fails the test unless an order was given, or unless none was if want is nil. It
// compares what the test knows of it.
func ordered(t *testing.T, got *fencing.Order, err error, want *fencing.Order) *fencing.Order {
	t.Helper()
	switch {
	case err != nil:
		t.Fatal(err)
	case (got == nil) != (want == nil):
		t.Fatalf("the order is %+v, want %+v", got, want)
	case got == nil:
		return nil
	}
	given := *got
	given.ID, given.AskedAt, given.Until = 0, time.Time{}, time.Time{}
	expected := *want
	expected.Resource, expected.AskedBy, expected.Reason, expected.Role = fencetest.Resource, ops.AskedBy, ops.Reason, pgtest.Control
	if given != expected {
		t.Fatalf("the order is %+v, want %+v", given, expected)
	}
	return got
}

// barred returns the refusal of a grant that an order forbids.
func barred(t *testing.T, err error) *fencing.Barred {
	t.Helper()
	var b *fencing.Barred
	if !errors.As(err, &b) {
		t.Fatalf("the grant: %v, want an error that says that the worker is barred", err)
	}
	return b
}

func TestEvictSupersedesTheLeaderOnce(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	order, err := operator.New(h.Fences).Evict(h.Ctx(), fencetest.Resource, "", 0, ops)
	ordered(t, order, err, nil) // no one leads
	one := h.Grant("one")
	order, err = operator.New(h.Fences).Evict(h.Ctx(), fencetest.Resource, "worker-two", 0, ops)
	ordered(t, order, err, nil) // another one leads

	order, err = operator.New(h.Fences).Evict(h.Ctx(), fencetest.Resource, "worker-one", 0, ops)
	ordered(t, order, err, &fencing.Order{Kind: "evict", Worker: "worker-one", Epoch: 2})
	err = h.Worker(one).Check(h.Ctx())
	if fencetest.StateOf(err) != fencing.StateSuperseded || fencetest.HintOf(err) != fencing.EvictedHint {
		t.Errorf("a write of the evicted leader: %v, hint %q; want ZF001, %q", err, fencetest.HintOf(err), fencing.EvictedHint)
	}
	fencetest.MustContain(t, err, "current epoch 2 is held by nobody")
	again := h.Award("one")
	again.Held = one.Epoch
	if _, err := h.Fence.Grant(h.Ctx(), again); fencetest.StateOf(err) != fencing.StateSuperseded || fencetest.HintOf(err) != fencing.EvictedHint {
		t.Errorf("another award to the evicted candidacy: %v; want ZF001", err)
	}

	order, err = operator.New(h.Fences).Evict(h.Ctx(), fencetest.Resource, "", 0, ops)
	ordered(t, order, err, nil)
	if two := h.Grant("two"); two.Epoch != 3 {
		t.Errorf("the next epoch is %d, want 3", two.Epoch)
	}
}

func TestEvictForATimeBarsTheWorkerAlone(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	h.Grant("one")
	order, err := operator.New(h.Fences).Evict(h.Ctx(), fencetest.Resource, "", time.Hour, ops)
	until := ordered(t, order, err, &fencing.Order{Kind: "evict", Worker: "worker-one", Epoch: 2}).Until
	if left := time.Until(until); left < 50*time.Minute || left > time.Hour {
		t.Errorf("the worker is barred until %v", until)
	}
	award := h.Award("one")
	award.Incarnation = "another"
	_, err = h.Fence.Grant(h.Ctx(), award)
	b := barred(t, err)
	if b.Left < 50*time.Minute || b.Left > time.Hour || b.Refusal.SQLState != fencing.StateNotLeader {
		t.Errorf("barred for %v, %s", b.Left, b.Refusal.SQLState)
	}
	fencetest.MustContain(t, b, `by order of "ops@host", it may not campaign until `, ` UTC, because of "drill"`)
	if want := "run: fencepost resume billing --database " + h.DB + " --worker worker-one"; !strings.Contains(b.Refusal.Hint, want) {
		t.Errorf("the hint %q does not name %q", b.Refusal.Hint, want)
	}
	h.Grant("two")
	order, err = operator.New(h.Fences).Evict(h.Ctx(), fencetest.Resource, "worker-one", time.Minute, ops) // shortens the bar, and leaves the leader alone
	ordered(t, order, err, &fencing.Order{Kind: "evict", Worker: "worker-one"})

	h.Server.Exec(t, pgtest.Control, h.DB, "UPDATE fencepost.bars SET until = clock_timestamp()")
	order, err = operator.New(h.Fences).Resume(h.Ctx(), fencetest.Resource, "worker-one", ops)
	ordered(t, order, err, nil) // it is over already
	h.Grant("one again")

	order, err = operator.New(h.Fences).Evict(h.Ctx(), fencetest.Resource, "worker-three", time.Hour, ops)
	ordered(t, order, err, &fencing.Order{Kind: "evict", Worker: "worker-three"})
	_, err = h.Fence.Grant(h.Ctx(), h.Award("three"))
	barred(t, err)
	order, err = operator.New(h.Fences).Resume(h.Ctx(), fencetest.Resource, "worker-three", ops)
	ordered(t, order, err, &fencing.Order{Kind: "resume", Worker: "worker-three"})
	h.Grant("three")
}

func TestPauseKeepsEverybodyFromLeadingUntilResume(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	one := h.Grant("one")
	order, err := operator.New(h.Fences).Pause(h.Ctx(), fencetest.Resource, ops)
	ordered(t, order, err, &fencing.Order{Kind: "pause", Worker: "worker-one", Epoch: 2})
	order, err = operator.New(h.Fences).Pause(h.Ctx(), fencetest.Resource, ops)
	ordered(t, order, err, nil)
	h.Server.Exec(t, pgtest.Control, h.DB, "UPDATE fencepost.orders SET asked_at = asked_at - interval '1 hour'")
	if in, err := operator.New(h.Fences).InForce(h.Ctx()); err != nil || !in[fencetest.Resource].Paused || in[fencetest.Resource].PausedFor.Round(time.Hour) != time.Hour {
		t.Errorf("in force are %+v, %v; want a pause for an hour", in, err)
	}

	if err := h.Worker(one).Check(h.Ctx()); fencetest.StateOf(err) != fencing.StateSuperseded {
		t.Errorf("a write of the former leader: %v; want ZF001", err)
	}
	_, err = h.Fence.Grant(h.Ctx(), h.Award("two"))
	b := barred(t, err)
	if b.Left != 0 {
		t.Errorf("the pause ends after %v", b.Left)
	}
	follower := h.Worker(fencing.Term{Award: fencing.Award{Worker: "worker-two", Incarnation: "incarnation-two"}})
	written := follower.Check(h.Ctx())
	if fencetest.StateOf(written) != fencing.StateNotLeader {
		t.Errorf("a write of a follower: %v; want ZF002", written)
	}
	command := "run: fencepost resume billing --database " + h.DB
	for _, err := range []error{b, written} {
		fencetest.MustContain(t, err, `"ops@host" paused the resource at `, ` UTC, because of "drill"`)
	}
	for _, hint := range []string{b.Refusal.Hint, fencetest.HintOf(written)} {
		if !strings.Contains(hint, command) {
			t.Errorf("the hint %q does not name %q", hint, command)
		}
	}
	bars, err := operator.New(h.Fences).Bars(h.Ctx())
	if err != nil || len(bars) != 1 || len(bars[fencetest.Resource]) != 1 || bars[fencetest.Resource][0].Worker != "" || bars[fencetest.Resource][0].Reason != "drill" {
		t.Errorf("the bars are %+v, %v", bars, err)
	}

	order, err = operator.New(h.Fences).Resume(h.Ctx(), fencetest.Resource, "", ops)
	ordered(t, order, err, &fencing.Order{Kind: "resume"})
	order, err = operator.New(h.Fences).Resume(h.Ctx(), fencetest.Resource, "", ops)
	ordered(t, order, err, nil)
	if two := h.Grant("two"); two.Epoch != 3 {
		t.Errorf("the next epoch is %d, want 3", two.Epoch)
	}
}

func TestOrdersAreReadInOrder(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	st, err := operator.New(h.Fences).Orders(h.Ctx(), math.MaxInt64)
	if err != nil || st.LastOrder != 0 || len(st.Orders) != 0 || st.Barred || len(st.Guards) != 0 {
		t.Fatalf("before the first order: %+v, %v", st, err)
	}
	for range 2 {
		if _, err := operator.New(h.Fences).Pause(h.Ctx(), fencetest.Resource, ops); err != nil {
			t.Fatal(err)
		}
		if _, err := operator.New(h.Fences).Resume(h.Ctx(), fencetest.Resource, "", ops); err != nil {
			t.Fatal(err)
		}
	}
	st, err = operator.New(h.Fences).Orders(h.Ctx(), 1)
	if err != nil || st.LastOrder != 4 || len(st.Orders) != 3 || st.Orders[0].ID != 2 || st.Orders[0].Kind != "resume" || st.Orders[2].ID != 4 || st.Barred {
		t.Errorf("after the first: %+v, %v", st, err)
	}
	if _, err := operator.New(h.Fences).Pause(h.Ctx(), fencetest.Resource, ops); err != nil {
		t.Fatal(err)
	}
	h.Server.Exec(t, pgtest.Control, h.DB, "INSERT INTO fencepost.guarded SELECT f.id, 2 FROM fencepost.fence f")
	if st, err = operator.New(h.Fences).Orders(h.Ctx(), math.MaxInt64); err != nil || st.LastOrder != 5 || len(st.Orders) != 0 || !st.Barred || st.Guards[fencetest.Resource] != 2 {
		t.Errorf("the last: %+v, %v", st, err)
	}
}

func TestPruneKeepsTheNewestGrantOfEachResource(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	for _, name := range []string{"one", "two", "three"} {
		h.Grant(name)
	}
	prune := func(want int64) {
		t.Helper()
		if n, err := operator.New(h.Fences).Prune(h.Ctx(), 90*24*time.Hour, ops); err != nil || n != want {
			t.Errorf("pruned %d, %v; want %d", n, err, want)
		}
	}
	prune(0)
	h.Server.Exec(t, pgtest.Control, h.DB, "UPDATE fencepost.grants SET granted_at = now() - interval '91 days'")
	prune(2)
	prune(0)
	if left := fencetest.Ask[string](h, "SELECT string_agg(worker, ' ') FROM fencepost.grants"); left != "worker-three" {
		t.Errorf("the ledger has %s", left)
	}
	st, err := operator.New(h.Fences).Orders(h.Ctx(), 0)
	orders := st.Orders
	if err != nil || len(orders) != 1 || orders[0].Kind != "prune" || orders[0].Resource != "" || orders[0].AskedBy != ops.AskedBy {
		t.Errorf("the orders are %+v, %v", orders, err)
	}
	if four := h.Grant("four"); four.Epoch != 4 {
		t.Errorf("the next epoch is %d, want 4", four.Epoch)
	}
	prune(0) // three's epoch began long ago and has just ended
	if before, err := h.Fence.SupersededBefore(h.Ctx(), "worker-three", ""); err != nil || !before {
		t.Errorf("the worker that was superseded last is not known as such (%v)", err)
	}
}

// TestHintsOfOrdersContainNoCommandForOddNames pauses a resource for a worker whose name a
// shell would interpret.
func TestHintsOfOrdersContainNoCommandForOddNames(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	for _, name := range []string{"$(touch x)", "it's", "-rf", "two words", "a;b", "\u00fc", `"`, "line\nbreak"} {
		fence, err := h.Fences.Fence(h.Ctx(), name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := operator.New(h.Fences).Pause(h.Ctx(), name, ops); err != nil {
			t.Fatal(err)
		}
		h.Number(fence, "m")
		_, err = fence.Grant(h.Ctx(), h.AwardOf(fence, "one"))
		if hint := barred(t, err).Refusal.Hint; strings.Contains(hint, "run: ") || !strings.Contains(hint, "fencepost resource list") {
			t.Errorf("%q: the hint is %q", name, hint)
		}
	}
}

// TestSafetyATokenOutlastsAPause: the token in force leads again after a pause and after the epochs
// were raised, and after an eviction it does not. Nothing is written under the epochs from before, and
// no lower token leads.
func TestSafetyATokenOutlastsAPause(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	if err := h.Fence.Number(h.Ctx(), fencing.SourceToken, "1"); err != nil {
		t.Fatal(err)
	}
	award := func(token int64, held fencing.Epoch) fencing.Award {
		return fencing.Award{Resource: fencetest.Resource, Worker: fmt.Sprintf("w-%d", token), Incarnation: fencing.TokenIncarnation(2, token),
			Source: fencing.SourceToken, InstanceID: "1", Index: token, Held: held}
	}
	grant := func(token int64, held fencing.Epoch) (fencing.Term, error) {
		a := award(token, held)
		epoch, err := h.Fence.Grant(h.Ctx(), a)
		return fencing.Term{Award: a, Epoch: epoch}, err
	}
	mustGrant := func(token int64) fencing.Term {
		t.Helper()
		term, err := grant(token, 0)
		if err != nil {
			t.Fatal(err)
		}
		return term
	}
	refused := func(what string, err error, state string) {
		t.Helper()
		if fencetest.StateOf(err) != state {
			t.Errorf("%s: %v; want %s", what, err, state)
		}
	}
	old := mustGrant(42)
	for what, interrupt := range map[string]func() error{
		"a pause": func() error {
			if _, err := operator.New(h.Fences).Pause(h.Ctx(), fencetest.Resource, ops); err != nil {
				return err
			}
			_, err := grant(42, 0)
			barred(t, err)
			_, err = grant(42, old.Epoch)
			refused("while paused, a candidacy from before", err, fencing.StateSuperseded)
			_, err = operator.New(h.Fences).Resume(h.Ctx(), fencetest.Resource, "", ops)
			return err
		},
		"a raised epoch": func() error {
			_, err := operator.New(h.Fences).RaiseEpochs(h.Ctx(), 0, ops)
			return err
		},
	} {
		if err := interrupt(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		refused("a write after "+what, h.Worker(old).Check(h.Ctx()), fencing.StateSuperseded)
		_, err := grant(41, 0)
		refused("a lower token after "+what, err, fencing.StateAwardNotNewer)
		_, err = grant(42, old.Epoch)
		refused("a candidacy from before "+what, err, fencing.StateSuperseded)
		now := mustGrant(42)
		if err := h.Worker(now).Check(h.Ctx()); err != nil || now.Epoch <= old.Epoch+1 {
			t.Errorf("after %s, the token has epoch %d: %v", what, now.Epoch, err)
		}
		refused("a write under the epoch from before "+what, h.Worker(old).Check(h.Ctx()), fencing.StateSuperseded)
		_, err = grant(42, old.Epoch)
		refused("a candidacy that has missed "+what, err, fencing.StateSuperseded)
		old = now
	}
	evictsToken := func(worker string, does bool) {
		t.Helper()
		order, err := operator.New(h.Fences).Evict(h.Ctx(), fencetest.Resource, worker, 0, ops)
		if err != nil || (order != nil) != does || does && (order.Worker != "w-42" || order.Epoch == 0) {
			t.Errorf("evict %q: %+v, %v; evicts: %v", worker, order, err, does)
		}
	}
	if _, err := operator.New(h.Fences).Pause(h.Ctx(), fencetest.Resource, ops); err != nil {
		t.Fatal(err)
	}
	evictsToken("w-41", false)
	evictsToken("w-42", true) // while no one leads, its token is in force
	evictsToken("", false)
	if _, err := operator.New(h.Fences).Resume(h.Ctx(), fencetest.Resource, "", ops); err != nil {
		t.Fatal(err)
	}
	for what, interrupt := range map[string]func() error{
		"an eviction":             func() error { return nil },
		"an eviction and a pause": func() error { _, err := operator.New(h.Fences).Pause(h.Ctx(), fencetest.Resource, ops); return err },
		"an eviction and its end": func() error {
			_, err := operator.New(h.Fences).Resume(h.Ctx(), fencetest.Resource, "", ops)
			return err
		},
		"an eviction and a restore": func() error { _, err := operator.New(h.Fences).RaiseEpochs(h.Ctx(), 0, ops); return err },
	} {
		if err := interrupt(); err != nil {
			t.Fatal(err)
		}
		_, err := grant(42, 0)
		refused("the token after "+what, err, fencing.StateAwardNotNewer)
	}
	if _, err := operator.New(h.Fences).Resume(h.Ctx(), fencetest.Resource, "", ops); err != nil {
		t.Fatal(err)
	}
	mustGrant(43)
	if _, err := operator.New(h.Fences).Evict(h.Ctx(), fencetest.Resource, "", 0, ops); err != nil {
		t.Fatal(err)
	}
	_, err := grant(43, 0)
	refused("the token of an evicted leader", err, fencing.StateAwardNotNewer)
}

// TestAnOrderWhoseOutcomeIsUnknownSaysSo: the connection is lost while the order is carried out.
func TestAnOrderWhoseOutcomeIsUnknownSaysSo(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	var ends []func()
	for name, c := range map[string]struct {
		give func(*fencetest.Database) error
		says string
	}{
		"evict": {func(h *fencetest.Database) error {
			_, err := operator.New(h.Fences).Evict(h.Ctx(), fencetest.Resource, "", 0, ops)
			return err
		}, "the order may have been given"},
		"remove": {func(h *fencetest.Database) error {
			_, err := operator.New(h.Fences).Remove(h.Ctx(), fencetest.Resource, true, ops)
			return err
		}, "the order may have been given"},
		"raise": {func(h *fencetest.Database) error {
			_, err := operator.New(h.Fences).RaiseEpochs(h.Ctx(), 0, ops)
			return err
		}, "this epoch may have been raised"},
	} {
		h := fencetest.New(t, s, func(cfg *fence.Config) { cfg.Grace = time.Hour })
		h.Worker(h.Grant("one")).Claim(h.Ctx(), t, pgx.ReadCommitted)
		given := make(chan error, 1)
		go func() { given <- c.give(h) }()
		fixture.Eventually(t, name+" to wait", func() bool { return h.Waiting() })
		ends = append(ends, func() { fencetest.MustContain(t, <-given, c.says, "fencepost status") })
	}
	s.Crash(t)
	for _, end := range ends {
		end()
	}
}

// TestAnOrderThatCannotBeReadBackWasGiven: the connection that reads it is cut without either side noticing, or the
// server refuses to.
func TestAnOrderThatCannotBeReadBackWasGiven(t *testing.T) {
	t.Parallel()
	reading := []byte("fencepost.orders o ON")
	for name, refused := range map[string]bool{"cut": false, "refused": true} {
		for _, kind := range []string{"evict", "remove"} {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				h := fencetest.New(t, pgtest.Shared(t))
				relay := fixture.NewRelay(t, "tcp", h.Server.Addr(), func() fixture.Passing {
					var mute atomic.Bool
					return fixture.Passing{
						ToServer: func(b []byte) []byte {
							if refused {
								return bytes.ReplaceAll(b, reading, []byte("fencepost.nobody o ON"))
							}
							mute.Store(mute.Load() || bytes.Contains(b, reading))
							return b
						},
						ToClient: func(b []byte) []byte {
							if mute.Load() {
								return nil
							}
							return b
						},
					}
				})
				far := h.Open(func(c *fence.Config) { c.Address = relay.Addr })
				h.Grant("a")
				ctx, err := h.Ctx(), error(nil)
				if kind == "evict" {
					_, err = operator.New(far).Evict(ctx, fencetest.Resource, "", 0, ops)
				} else {
					_, err = operator.New(far).Remove(ctx, fencetest.Resource, true, ops)
				}
				var refusal *fencing.Refusal
				if !errors.Is(err, operator.ErrUnread) || errors.As(err, &refusal) || ctx.Err() != nil {
					t.Errorf("the order ended with %v, and its context with %v", err, ctx.Err())
				}
				id := fencetest.Ask[int64](h, "SELECT o.id FROM fencepost.orders o WHERE o.kind = $1 AND o.resource = $2", kind, fencetest.Resource)
				fencetest.MustContain(t, err, fmt.Sprintf("order %d to resource %q: it was given", id, fencetest.Resource), "see fencepost status")
			})
		}
	}
}
