package fence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/migrations"
)

func TestRegisterAtOnceGivesOneFence(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	const n = 8
	ids := make(chan int32, n)
	for range n {
		go func() {
			f, err := h.Fences.Fence(h.Ctx(), "new one")
			if err != nil {
				t.Error(err)
				ids <- 0
				return
			}
			ids <- f.ID()
		}()
	}
	first := <-ids
	for range n - 1 {
		if id := <-ids; id != first || id == h.Fence.ID() {
			t.Errorf("ids %d and %d for one resource, %d for another", first, id, h.Fence.ID())
		}
	}
}

func TestResourceNamesAreLimitedInBytes(t *testing.T) {
	t.Parallel()
	namesAreLimitedInBytes(fencetest.New(t, pgtest.Shared(t)))
}

// namesAreLimitedInBytes uses letters of two bytes.
func namesAreLimitedInBytes(h *fencetest.Database) {
	h.T.Helper()
	longest := strings.Repeat("\u00e4", fencing.MaxName/2)
	if _, err := h.Fences.Fence(h.Ctx(), longest); err != nil {
		h.T.Errorf("the longest name: %v", err)
	}
	for _, name := range []string{"", longest + "x"} {
		_, err := h.Fences.Fence(h.Ctx(), name)
		if fencetest.StateOf(err) != fencing.StateNoFence || fencetest.HintOf(err) != fencing.NameRule {
			h.T.Errorf("a name of %d bytes: %v, hint %q", len(name), err, fencetest.HintOf(err))
		}
	}
}

func TestGrantsGrowAndAreRecorded(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	if rec, err := h.Fence.Record(h.Ctx()); err != nil || rec != (fencing.Record{}) {
		t.Errorf("before any grant: %+v, %v; want the zero record", rec, err)
	}
	before := time.Now().Add(-time.Minute)
	for want := fencing.Epoch(1); want <= 5; want++ {
		term := h.Grant(fmt.Sprint(want))
		rec, err := h.Fence.Record(h.Ctx())
		if err != nil {
			t.Fatal(err)
		}
		if rec.Epoch != want || term.Epoch != want || rec.Worker != term.Worker || rec.Incarnation != term.Incarnation ||
			rec.Source != "test" || rec.Generation != 1 || rec.Index != term.Index || rec.GrantedAt.Before(before) {
			t.Errorf("grant %+v was recorded as %+v; want epoch %d", term, rec, want)
		}
		if err := h.Fence.Verify(h.Ctx(), term); err != nil {
			t.Errorf("verify the current term: %v", err)
		}
	}
	if got := fencetest.Ask[int](h, "SELECT count(*) FROM fencepost.grants"); got != 5 {
		t.Errorf("the ledger has %d rows, want 5", got)
	}
	list, err := h.Fences.Status(h.Ctx())
	if err != nil || len(list) != 1 || list[0].Resource != fencetest.Resource || list[0].Epoch != 5 {
		t.Errorf("status %+v, %v", list, err)
	}
}

func TestTheSameAwardAgainReturnsTheSameEpoch(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	term := h.Grant("a")
	for range 3 { // the reply was lost, so the caller does not know that it has an epoch
		epoch, err := h.Fence.Grant(h.Ctx(), term.Award)
		if err != nil || epoch != term.Epoch {
			t.Errorf("the same award again: epoch %d, %v; want %d", epoch, err, term.Epoch)
		}
	}
	if got := fencetest.Ask[int](h, "SELECT count(*) FROM fencepost.grants"); got != 1 {
		t.Errorf("the ledger has %d rows, want 1", got)
	}
}

func TestALaterAwardToTheSameCandidacyKeepsTheEpoch(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	term := h.Grant("a")
	w := h.Worker(term)
	tx := w.Claim(h.Ctx(), t, "") // stays open: no one may be disturbed
	again := h.Award("a")
	again.Held = term.Epoch
	epoch, err := h.Fence.Grant(h.Ctx(), again)
	if err != nil || epoch != term.Epoch {
		t.Fatalf("epoch %d, %v; want %d kept", epoch, err, term.Epoch)
	}
	if _, err := tx.Exec(h.Ctx(), "CREATE TABLE public.undisturbed ()"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(h.Ctx()); err != nil {
		t.Errorf("the leader's open transaction: %v", err)
	}
	late := h.Award("b")
	late.Index = again.Index
	if _, err := h.Fence.Grant(h.Ctx(), late); fencetest.StateOf(err) != fencing.StateAwardNotNewer {
		t.Errorf("an award with the index that was kept last: %v; want ZF006", err)
	}
}

func TestAnAwardThatIsNotNewerIsRefusedAndDisturbsNoOne(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	slow := h.Award("slow")
	term := h.Grant("fast")
	w := h.Worker(term)
	tx := w.Claim(h.Ctx(), t, "")
	_, err := h.Fence.Grant(h.Ctx(), slow)
	if fencetest.StateOf(err) != fencing.StateAwardNotNewer {
		t.Fatalf("got %v, want ZF006", err)
	}
	var refusal *fencing.Refusal
	errors.As(err, &refusal)
	fencetest.MustContain(t, errors.New(refusal.Message+refusal.Hint), "index 1", "index 2", "fencepost generation bump")
	if err := tx.Commit(h.Ctx()); err != nil {
		t.Errorf("the leader's transaction was disturbed: %v", err)
	}
}

func TestASupersededCandidacyIsNeverGrantedAgain(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	first := h.Grant("a")
	another := h.Award("a")
	another.Incarnation = "another"
	if _, err := h.Fence.Grant(h.Ctx(), another); err != nil {
		t.Fatal(err)
	}
	if before, err := h.Fence.SupersededBefore(h.Ctx(), first.Worker, ""); err != nil || before {
		t.Errorf("superseded before by another candidacy of itself: %t, %v", before, err)
	}
	h.Grant("b")
	again := h.Award("a")
	again.Held = first.Epoch
	if _, err := h.Fence.Grant(h.Ctx(), again); fencetest.StateOf(err) != fencing.StateSuperseded {
		t.Errorf("another award: %v; want ZF001", err)
	}
	if err := h.Fence.Verify(h.Ctx(), first); fencetest.StateOf(err) != fencing.StateSuperseded {
		t.Errorf("verify the old term: %v; want ZF001", err)
	}
	before, err := h.Fence.SupersededBefore(h.Ctx(), first.Worker, "")
	if err != nil || !before {
		t.Errorf("superseded before: %t, %v", before, err)
	}
	if before, err := h.Fence.SupersededBefore(h.Ctx(), "worker-b", ""); err != nil || before {
		t.Errorf("the leader was superseded before: %t, %v", before, err)
	}
}

// TestACandidacyThatDidNotLearnItsEpochIsNotSuperseded: the grant was cancelled while it waited
// for a standby, or its answer was lost, and another worker was granted an epoch. No one can write
// under the epoch that was announced to no one.
func TestACandidacyThatDidNotLearnItsEpochIsNotSuperseded(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	unannounced := h.Grant("a")
	other := h.Grant("b")
	term := fencing.Term{Award: h.Award("a")}
	var err error
	if term.Epoch, err = h.Fence.Grant(h.Ctx(), term.Award); err != nil || term.Epoch != other.Epoch+1 {
		t.Fatalf("another award: epoch %d, %v; want %d", term.Epoch, err, other.Epoch+1)
	}
	if err := h.Worker(unannounced).Check(h.Ctx()); fencetest.StateOf(err) != fencing.StateSuperseded {
		t.Errorf("a write under the epoch that it was not told of: %v; want ZF001", err)
	}
	if err := h.Worker(term).Check(h.Ctx()); err != nil {
		t.Errorf("a write under the new epoch: %v", err)
	}
	for except, want := range map[string]bool{term.Incarnation: false, "": true} {
		if before, err := h.Fence.SupersededBefore(h.Ctx(), term.Worker, except); err != nil || before != want {
			t.Errorf("superseded before, but for %q: %t, %v; want %t", except, before, err, want)
		}
	}
	if _, err := h.Fence.Grant(h.Ctx(), unannounced.Award); fencetest.StateOf(err) != fencing.StateAwardNotNewer {
		t.Errorf("the first award, late: %v; want ZF006", err)
	}
}

// TestWhoSharesAnEpochCountsAsOneThatHadIt: workers that bring the same token share an incarnation and an
// epoch, and the ledger names the first one.
func TestWhoSharesAnEpochCountsAsOneThatHadIt(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	bring := func(incarnation string, workers ...string) {
		t.Helper()
		first := h.Award(workers[0])
		first.Incarnation = incarnation
		for _, w := range workers {
			award := first
			award.Worker = w
			for range 2 { // a grant may be repeated
				if _, err := h.Fence.Grant(h.Ctx(), award); err != nil {
					t.Fatalf("grant to %s: %v", w, err)
				}
			}
		}
	}
	mustBe := func(want bool, workers ...string) {
		t.Helper()
		for _, w := range workers {
			if before, err := h.Fence.SupersededBefore(h.Ctx(), w, ""); err != nil || before != want {
				t.Errorf("%s was superseded before: %t, %v; want %t", w, before, err, want)
			}
		}
	}
	bring("token 5", "a", "b", "c")
	mustBe(false, "a", "b", "c", "d")
	bring("token 6", "c", "d")
	mustBe(true, "a", "b", "c") // d may have led by token 6 before c did
	mustBe(false, "d")
	bring("token 7", "d")
	mustBe(false, "d")
	n, err := operator.New(h.Fences).Prune(h.Ctx(), 0, ops)
	if err != nil || n != 2 {
		t.Fatalf("prune: %d, %v", n, err)
	}
	mustBe(false, "a", "b", "c", "d")
}

func TestGrantsAtOnceKeepTheOrderOfAwards(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	other := h.NewFence(h.Open())
	const n = 20
	type result struct {
		index int64
		epoch fencing.Epoch
		err   error
	}
	results := make(chan result, n)
	for i := range n {
		a, f := h.Award(fmt.Sprint(i)), h.Fence
		if i%2 == 1 {
			f = other
		}
		go func() {
			epoch, err := f.Grant(h.Ctx(), a)
			results <- result{a.Index, epoch, err}
		}()
	}
	byIndex := make(map[int64]fencing.Epoch)
	for range n {
		r := <-results
		switch {
		case r.err == nil:
			byIndex[r.index] = r.epoch
		case fencetest.StateOf(r.err) != fencing.StateAwardNotNewer:
			t.Errorf("award %d: %v", r.index, r.err)
		}
	}
	if byIndex[h.Index] == 0 {
		t.Error("the newest award was not granted")
	}
	last := fencing.Epoch(0)
	for i := int64(1); i <= h.Index; i++ {
		if epoch, granted := byIndex[i]; granted {
			if epoch != last+1 {
				t.Errorf("award %d has epoch %d after %d", i, epoch, last)
			}
			last = epoch
		}
	}
}

func TestACancelledGrantReturnsAtOnceAndLeavesTheQueue(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Grace = time.Minute })
	term := h.Grant("a")
	tx := h.Worker(term).Claim(h.Ctx(), t, "")
	ctx, cancel := context.WithCancel(h.Ctx())
	result := make(chan error, 1)
	a := h.Award("b")
	go func() {
		_, err := h.Fence.Grant(ctx, a)
		result <- err
	}()
	fixture.Eventually(t, "the grant waits", func() bool { return h.Waiting() })
	if rec, err := h.Fence.Record(h.Ctx()); err != nil || rec.Epoch != term.Epoch {
		t.Errorf("meanwhile the record is %+v, %v; want epoch %d, which is still in force", rec, err, term.Epoch)
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	fixture.Eventually(t, "the cancelled grant has left the queue", func() bool { return !h.Waiting() })
	if err := h.Worker(term).Check(h.Ctx()); err != nil {
		t.Errorf("the leader's next check: %v", err)
	}
	if err := tx.Commit(h.Ctx()); err != nil {
		t.Errorf("the leader's transaction: %v", err)
	}
}

func TestWhoeverAGrantEndedReadsItsEpoch(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	w := h.Worker(h.Grant("a"))
	h.MustEnter(w)
	a, granted := h.Award("b"), make(chan error, 1)
	go func() {
		_, err := h.Fence.Grant(h.Ctx(), a)
		granted <- err
	}()
	if _, err := w.Exec(h.Ctx(), "SELECT pg_sleep(30)"); fencetest.StateOf(err) != "57P01" {
		t.Errorf("the worker's backend: %v; want 57P01", err)
	}
	rec, err := h.Fence.Record(h.Ctx()) // at once: the grant may not have returned yet
	if err != nil || rec.Epoch != w.Term.Epoch+1 {
		t.Errorf("record %+v, %v; want the epoch of the grant that ended the backend", rec, err)
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
}

// TestNoGrantWithoutWhatARegistrationCalls: whoever is granted an epoch then could not write.
func TestNoGrantWithoutWhatARegistrationCalls(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t), func(c *fence.Config) { c.Complete = migrations.Examine })
	if _, err := h.Fence.Grant(h.Ctx(), h.Award("a")); err != nil {
		t.Fatal(err)
	}
	const function = "fencepost.holds(fencepost.fence,bigint,bigint,text)"
	h.Server.Exec(t, pgtest.Control, h.DB, "ALTER FUNCTION "+function+" RENAME TO away")
	_, err := h.Fence.Grant(h.Ctx(), h.Award("b"))
	if f := store.FaultOf(err); fencetest.StateOf(err) != fencing.StateNoFence || f.Kind != faults.Schema || !strings.Contains(f.Problem, "lacks function "+function) || !strings.Contains(f.Remedy, "fencepost migrate") {
		t.Errorf("the grant: %v, which is the fault %+v", err, f)
	}
	if err := h.Fences.Examine(h.Ctx()); fencetest.StateOf(err) != fencing.StateNoFence {
		t.Errorf("the examination: %v", err)
	}
	h.Server.Exec(t, pgtest.Control, h.DB, "ALTER FUNCTION fencepost.away(fencepost.fence,bigint,bigint,text) RENAME TO holds")
	if err := h.Fences.Examine(h.Ctx()); err != nil {
		t.Error(err)
	}
	if epoch, err := h.Fence.Grant(h.Ctx(), h.Award("c")); err != nil || epoch != 2 {
		t.Errorf("epoch %d, %v", epoch, err)
	}
}

// TestAGrantThatIsNotAnsweredIsGivenUp: its connection is cut, and neither side notices. Whoever asks again is granted
// the epoch on another connection, whether the first request arrived or not.
func TestAGrantThatIsNotAnsweredIsGivenUp(t *testing.T) {
	t.Parallel()
	const syncLength = 5
	for _, c := range []struct {
		name    string
		arrives func(request []byte) []byte // what the server gets
		granted bool
		setting string
	}{
		{"the request is lost", func([]byte) []byte { return nil }, false, ""},
		{"the answer is lost", func(b []byte) []byte { return b }, true, ""},
		{"the end of the request is lost", func(b []byte) []byte { return b[:len(b)-syncLength] }, false, ""},
		{"the server tells no activities", func([]byte) []byte { return nil }, false, "track_activities = off"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := fencetest.New(t, pgtest.Shared(t))
			if c.setting != "" {
				h.Server.Exec(t, pgtest.Superuser, h.DB, fmt.Sprintf("ALTER DATABASE %s SET %s", h.DB, c.setting))
			}
			var cut atomic.Bool // whether one grant's connection was cut
			relay := fixture.NewRelay(t, "tcp", h.Server.Addr(), func() fixture.Passing {
				var dead atomic.Bool
				prepared := false
				return fixture.Passing{
					ToServer: func(b []byte) []byte {
						switch {
						case dead.Load():
							return nil
						case prepared && cut.CompareAndSwap(false, true): // this is the request to execute it
							dead.Store(true)
							return c.arrives(b)
						}
						prepared = prepared || bytes.Contains(b, []byte("SELECT fencepost.grant("))
						return b
					},
					ToClient: func(b []byte) []byte {
						if dead.Load() {
							return nil
						}
						return b
					},
				}
			})
			far := h.NewFence(h.Open(func(c *fence.Config) { c.Address = relay.Addr }))
			a := h.Award("a")
			_, err := far.Grant(h.Ctx(), a)
			var blocked *fence.GrantBlockedError
			if err == nil || errors.As(err, &blocked) || !strings.Contains(err.Error(), "its connection does not respond") {
				t.Fatalf("the first grant: %v", err)
			}
			record, err := h.Fence.Record(h.Ctx())
			if err != nil || record.Epoch != 0 != c.granted {
				t.Errorf("after the first grant: %+v, %v", record, err)
			}
			if epoch, err := far.Grant(h.Ctx(), a); err != nil || epoch != 1 {
				t.Errorf("the second grant: epoch %d, %v", epoch, err)
			}
		})
	}
}

// TestWhatWasGivenUpIsNotDoneLater: the order to evict a leader arrives when it has been given up, and before the request
// to cancel it.
func TestWhatWasGivenUpIsNotDoneLater(t *testing.T) {
	t.Parallel()
	const cancelLength = 16
	h := fencetest.New(t, pgtest.Shared(t))
	sent, arrives, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(sent) })
	relay := fixture.NewRelay(t, "tcp", h.Server.Addr(), func() fixture.Passing {
		prepared := false
		return fixture.Passing{ToServer: func(b []byte) []byte {
			switch {
			case len(b) == cancelLength:
				<-over
			case prepared:
				once()
				<-arrives
			}
			prepared = bytes.Contains(b, []byte("SELECT fencepost.evict("))
			return b
		}}
	})
	t.Cleanup(func() { close(over) })
	h.Grant("a")
	far := h.Open(func(c *fence.Config) { c.Address = relay.Addr })
	ordered := make(chan error, 1)
	go func() {
		_, err := operator.New(far).Evict(h.Ctx(), fencetest.Resource, "", 0, operator.Orderer{AskedBy: "test"})
		ordered <- err
	}()
	<-sent
	pid := fencetest.Ask[int](h, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT fencepost.evict(%'")
	if err := <-ordered; err == nil || !strings.Contains(err.Error(), "may have been given") {
		t.Errorf("the order that has not arrived: %v", err)
	}
	close(arrives)
	fixture.Eventually(t, "the backend is gone", func() bool {
		return !fencetest.Ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid)
	})
	if record, err := h.Fence.Record(h.Ctx()); err != nil || record.Worker != "worker-a" {
		t.Errorf("after the order has arrived: %+v, %v", record, err)
	}
}

// TestRegisterWaitsForARemoval recreates a resource while the floor is being raised.
func TestRegisterWaitsForARemoval(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	removal, err := h.Server.Connect(t, pgtest.Control, h.DB).Begin(h.Ctx())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := removal.Exec(h.Ctx(), "UPDATE fencepost.floor SET epoch = 7"); err != nil {
		t.Fatal(err)
	}
	made := make(chan error, 1)
	go func() {
		_, err := h.Fences.Fence(h.Ctx(), "new")
		made <- err
	}()
	fixture.Eventually(t, "the registration waits", func() bool {
		return fencetest.Ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%register%' AND datname = current_database())")
	})
	if err := removal.Commit(h.Ctx()); err != nil {
		t.Fatal(err)
	}
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	if epoch := fencetest.Ask[int](h, "SELECT epoch FROM fencepost.fence WHERE resource = 'new'"); epoch != 7 {
		t.Errorf("the new fence begins with epoch %d, want 7", epoch)
	}
}
