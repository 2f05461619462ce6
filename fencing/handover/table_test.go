package handover_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/handover"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const resource = "billing"

var ops = operator.Orderer{AskedBy: "ops@host", Reason: "drill"}

// database is one database with a fence, as one proxy sees it.
type database struct {
	*testing.T
	server *pgtest.Server
	db     string
	fences *fence.Database
	fence  *fence.Fence
	index  int64 // of the last award
}

func newDatabase(t *testing.T) *database {
	t.Helper()
	d := &database{T: t, server: pgtest.Shared(t)}
	d.db = d.server.Database(t)
	d.fences = fixture.OpenStore(t, fence.Config{Config: store.Config{Address: d.server.Addr(), Database: d.db, User: pgtest.Control},
		Grace: 100 * time.Millisecond, Patience: 10 * time.Second})
	t.Cleanup(d.fences.Close)
	d.fence = fixture.Fence(t, d.fences, resource)
	if err := d.fence.Number(t.Context(), "test", "life"); err != nil {
		t.Fatal(err)
	}
	return d
}

// grant asks for a grant to a new award of a worker's candidacy, which held an epoch, or 0.
func (d *database) grant(worker, incarnation string, held fencing.Epoch) (fencing.Epoch, error) {
	d.index++
	return d.fence.Grant(d.Context(), fencing.Award{Resource: resource, Worker: worker, Incarnation: incarnation,
		Source: "test", InstanceID: "life", Index: d.index, Held: held})
}

// lead grants a worker an epoch.
func (d *database) lead(worker string) fencing.Epoch {
	d.Helper()
	epoch, err := d.grant(worker, "of-"+worker, 0)
	if err != nil {
		d.Fatalf("grant to %s: %v", worker, err)
	}
	return epoch
}

// proxy returns the table of another proxy, through which these workers campaign.
func (d *database) proxy(name string, workers ...string) *handover.Table {
	d.Helper()
	p := handover.New(d.fences.Pool(), name, rand.Text())
	d.record(p, candidates(workers...)...)
	return p
}

func (d *database) record(p *handover.Table, all ...fencing.Candidate) {
	d.Helper()
	if err := p.Record(d.Context(), func() []fencing.Candidate { return all }); err != nil {
		d.Fatal(err)
	}
}

func candidates(workers ...string) (all []fencing.Candidate) {
	for _, w := range workers {
		all = append(all, fencing.Candidate{Resource: resource, Worker: w, Incarnation: "of-" + w, State: fencing.CandidateWaiting})
	}
	return all
}

// waiting returns who waits, as the view of the status says.
func (d *database) waiting() (workers []string) {
	d.Helper()
	if err := d.server.Connect(d, pgtest.Control, d.db).QueryRow(d.Context(), "SELECT waiting FROM fencepost.status WHERE resource = $1", resource).Scan(&workers); err != nil {
		d.Fatal(err)
	}
	return workers
}

func (d *database) mustWait(want ...string) {
	d.Helper()
	if got := d.waiting(); !slices.Equal(got, want) {
		d.Errorf("waiting are %q, want %q", got, want)
	}
}

// offer hands the resource over for so long, which must be possible.
func (d *database) offer(worker string, length time.Duration) *fencing.Order {
	d.Helper()
	order, err := operator.New(d.fences).Handover(d.Context(), resource, worker, length, ops)
	if err != nil || order == nil {
		d.Fatalf("hand over to %s: order %v, %v", worker, order, err)
	}
	return order
}

// refused fails the test unless an order was refused with these words.
func (d *database) refused(worker string, says ...string) {
	d.Helper()
	order, err := operator.New(d.fences).Handover(d.Context(), resource, worker, time.Minute, ops)
	var r *fencing.Refusal
	if order != nil || !errors.As(err, &r) || r.SQLState != fencing.StateNotHandedOver {
		d.Fatalf("hand over to %s: order %v, %v", worker, order, err)
	}
	for _, part := range says {
		if !strings.Contains(r.Message+"\n"+r.Hint, part) {
			d.Errorf("%q, hint %q, does not say %q", r.Message, r.Hint, part)
		}
	}
}

// barred fails the test unless the fence refuses a worker because of a hand-over.
func (d *database) barred(worker string) *fencing.Barred {
	d.Helper()
	epoch, err := d.grant(worker, "again-of-"+worker, 0)
	var b *fencing.Barred
	if !errors.As(err, &b) {
		d.Fatalf("grant to %s: epoch %d, %v; want a refusal", worker, epoch, err)
	}
	return b
}

// TestTheFenceGrantsWhatIsOfferedToOneWorkerOnly, whatever its proxy knows: to the chosen one, and to
// anyone after the offer has run out.
func TestTheFenceGrantsWhatIsOfferedToOneWorkerOnly(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.lead("a")
	p := d.proxy("p", "a", "b", "c")
	order := d.offer("b", time.Hour)
	if order.Kind != "handover" || order.Worker != "b" || order.AskedBy != ops.AskedBy || order.Epoch != 0 {
		t.Errorf("the order is %+v", order)
	}
	b := d.barred("c")
	if !strings.Contains(b.Refusal.Message, `by order of "ops@host", the resource is handed over to worker "b", because of "drill"`) || b.Left < time.Minute || b.Left > 2*time.Hour {
		t.Errorf("%+v, for %v more", b.Refusal, b.Left)
	}
	d.barred("a") // also who led, by another candidacy
	if epoch, err := d.grant("a", "of-a", 1); epoch != 1 || err != nil {
		t.Errorf("the leader's own candidacy has another award: epoch %d, %v", epoch, err)
	}
	if epoch := d.lead("b"); epoch != 2 {
		t.Errorf("the chosen worker has epoch %d", epoch)
	}
	if epoch := d.lead("c"); epoch != 3 { // the offer is over
		t.Errorf("the next leader has epoch %d", epoch)
	}

	d.record(p, fencing.Candidate{Resource: resource, Worker: "b", Incarnation: "second-of-b", State: fencing.CandidateWaiting})
	d.offer("b", 5*time.Second) // and the delay
	d.barred("a")
	var left time.Duration
	deadline := time.Now().Add(time.Minute)
	for {
		s, err := handover.Look(t.Context(), d.fences.Pool(), resource, true)
		if err != nil {
			t.Fatal(err)
		}
		if left = s.Left; left <= 0 || time.Now().After(deadline) {
			break
		}
		time.Sleep(min(left, 100*time.Millisecond))
	}
	if epoch, err := d.grant("a", "third-of-a", 0); epoch != 4 || err != nil {
		t.Errorf("after the offer has run out: epoch %d, %v", epoch, err)
	}
}

// TestAHandoverIsRefusedAtOnce where the chosen worker could not lead.
func TestAHandoverIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.refused("b", `worker "b" does not campaign for it through any proxy`, "No other worker campaigns")
	d.lead("a")
	p := d.proxy("p", "a", "b", "c")
	d.record(p, append(candidates("a", "b", "c"), fencing.Candidate{Resource: resource, Worker: "s", Incarnation: "of-s", Silent: true, State: fencing.CandidateIdle})...)
	d.refused("d", `worker "d" does not campaign`, `These could lead: "b", "c".`)
	d.refused("s", `worker "s" campaigns, but it is silent`, `"b", "c"`)
	if order, err := operator.New(d.fences).Handover(t.Context(), resource, "a", 0, ops); order != nil || err != nil {
		t.Errorf("to the leader: %v, %v", order, err)
	}
	if _, err := operator.New(d.fences).Evict(t.Context(), resource, "b", time.Hour, ops); err != nil {
		t.Fatal(err)
	}
	d.refused("b", "it may not campaign until", "resume")
	if _, err := operator.New(d.fences).Resume(t.Context(), resource, "b", ops); err != nil {
		t.Fatal(err)
	}
	first := d.offer("b", time.Hour)
	if again := d.offer("b", time.Hour); again.ID != first.ID {
		t.Errorf("the same hand-over again is order %d, and was %d", again.ID, first.ID)
	}
	d.refused("c", `it is being handed over to worker "b" until`)
	if _, err := operator.New(d.fences).Pause(t.Context(), resource, ops); err != nil {
		t.Fatal(err)
	}
	d.refused("c", "paused the resource")
	d.server.Exec(t, pgtest.Control, d.db, "DELETE FROM fencepost.bars", "UPDATE fencepost.fence SET source = 'token'")
	d.refused("c", "the application elects its leader")
	if _, err := operator.New(d.fences).Handover(t.Context(), "none", "c", 0, ops); !errors.Is(err, fence.ErrNoResource) {
		t.Errorf("no such resource: %v", err)
	}
}

// TestOneOfTwoOperatorsHandsOver: of orders with different targets that are given at once, one counts.
func TestOneOfTwoOperatorsHandsOver(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.lead("a")
	var names []string
	for i := range 8 {
		names = append(names, fmt.Sprintf("w%d", i))
	}
	d.proxy("p", names...)
	given := make([]*fencing.Order, len(names))
	var all errgroup.Group
	for i, name := range names {
		all.Go(func() error {
			var err error
			given[i], err = operator.New(d.fences).Handover(t.Context(), resource, name, time.Hour, ops)
			var r *fencing.Refusal
			if errors.As(err, &r) && strings.Contains(r.Message, "it is being handed over to worker") {
				return nil
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	given = slices.DeleteFunc(given, func(o *fencing.Order) bool { return o == nil })
	offers, err := handover.New(d.fences.Pool(), "q", rand.Text()).Offers(t.Context())
	if err != nil || len(given) != 1 || len(offers) != 1 || offers[0].Order != given[0].ID || offers[0].Worker != given[0].Worker {
		t.Errorf("given were %+v, and in force are %+v (%v)", given, offers, err)
	}
}

// TestOtherOrdersEndAnOffer: who loses the lead by an order does not keep it reserved.
func TestOtherOrdersEndAnOffer(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.lead("a")
	d.proxy("p", "a", "b", "c")
	d.offer("b", time.Hour)
	if _, err := operator.New(d.fences).Evict(t.Context(), resource, "", 0, ops); err != nil {
		t.Fatal(err)
	}
	if epoch := d.lead("c"); epoch != 3 {
		t.Errorf("epoch %d", epoch)
	}

	if _, err := operator.New(d.fences).Evict(t.Context(), resource, "", 0, ops); err != nil {
		t.Fatal(err)
	}
	d.offer("b", time.Hour) // while no one leads, so that an order makes no epoch
	d.barred("c")
	for _, order := range []func(context.Context, string) error{
		func(ctx context.Context, r string) error {
			_, err := operator.New(d.fences).Pause(ctx, r, ops)
			return err
		},
		func(ctx context.Context, r string) error {
			_, err := operator.New(d.fences).Resume(ctx, r, "", ops)
			return err
		},
	} {
		if err := order(t.Context(), resource); err != nil {
			t.Fatal(err)
		}
	}
	if epoch := d.lead("c"); epoch != 5 {
		t.Errorf("after a pause: epoch %d", epoch)
	}
}

// TestALeaderThatIsGoneDoesNotLead: its epoch is recorded, but it does not campaign any more.
func TestALeaderThatIsGoneDoesNotLead(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.lead("a")
	p := d.proxy("p", "a", "b")
	if order, err := operator.New(d.fences).Handover(t.Context(), resource, "a", time.Minute, ops); order != nil || err != nil {
		t.Errorf("to the leader: order %v, %v", order, err)
	}
	d.record(p, fencing.Candidate{Resource: resource, Worker: "a", Incarnation: "of-a", Silent: true, State: fencing.CandidateIdle}, candidates("b")[0])
	d.refused("a", "it is silent")
	d.record(p, candidates("b")...)
	d.refused("a", `worker "a" does not campaign for it`)
}

// TestASupersededCandidacyIsNotChosen, which can never lead again. Another one of the same worker can.
func TestASupersededCandidacyIsNotChosen(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.lead("a")
	d.lead("b")
	p := d.proxy("p", "a", "b", "c")
	d.refused("a", `worker "a" does not campaign for it`, `These could lead: "c".`)
	d.record(p, append(candidates("a", "b", "c"), fencing.Candidate{Resource: resource, Worker: "a", Incarnation: "next-of-a", State: fencing.CandidateWaiting})...)
	d.offer("a", time.Hour)
}

// TestWhoCampaignsIsKnownFromAllProxies that are alive.
func TestWhoCampaignsIsKnownFromAllProxies(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.lead("a")
	p, q := d.proxy("p", "a", "b"), d.proxy("q", "c")
	d.mustWait("b", "c")
	d.record(p, candidates("a")...)
	d.mustWait("c")
	d.record(p, candidates("a", "d", "e")...)
	d.mustWait("c", "d", "e")
	d.record(q)
	d.mustWait("d", "e")
	d.record(q, candidates("c")...)
	d.mustWait("c", "d", "e")

	d.server.Exec(t, pgtest.Control, d.db, "UPDATE fencepost.proxies SET seen = seen - interval '20 seconds' WHERE name = 'p'")
	d.mustWait("c") // p has died
	d.server.Exec(t, pgtest.Control, d.db, "UPDATE fencepost.proxies SET seen = seen - interval '2 minutes' WHERE name = 'p'")
	d.record(q, candidates("c", "f")...)
	var left int
	if err := d.server.Connect(t, pgtest.Control, d.db).QueryRow(t.Context(), "SELECT count(*) FROM fencepost.candidates c JOIN fencepost.proxies p ON p.id = c.proxy WHERE p.name = 'p'").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d candidates of a dead proxy are left (%v)", left, err)
	}
	d.record(p, candidates("a", "d", "g")...) // it was only frozen
	d.mustWait("c", "d", "f", "g")
}

// TestTheForeignKeyOfARestoredDatabaseIsCreated: pg_restore creates it last, when proxies are connected already. One of
// them has ended, and the dump has another one that is gone.
func TestTheForeignKeyOfARestoredDatabaseIsCreated(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.server.Exec(t, pgtest.Control, d.db, "ALTER TABLE fencepost.candidates DROP CONSTRAINT candidates_proxy_fkey",
		"INSERT INTO fencepost.proxies (id, name, revision, seen) VALUES ('dumped', 'd', 1, now() - interval '1 hour')",
		"INSERT INTO fencepost.candidates (proxy, incarnation, resource, worker, silent, state) VALUES ('dumped', 'of-d', 'billing', 'd', false, 'waiting')")
	p, q := d.proxy("p", "a"), d.proxy("q", "b")
	d.record(q)
	d.server.Exec(t, pgtest.Control, d.db, `ALTER TABLE ONLY fencepost.candidates ADD CONSTRAINT candidates_proxy_fkey
		FOREIGN KEY (proxy) REFERENCES fencepost.proxies (id) ON DELETE CASCADE`)
	d.record(p, candidates("a", "c")...)
	d.mustWait("a", "c")
}

// TestAFailoverThatLosesABatchIsNoticed: the batches do not wait for the disk.
func TestAFailoverThatLosesABatchIsNoticed(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.lead("a")
	p := d.proxy("p", "b", "c")
	d.record(p, candidates("b", "c", "d")...)
	d.server.Exec(t, pgtest.Control, d.db, "UPDATE fencepost.proxies SET revision = revision - 1", "DELETE FROM fencepost.candidates WHERE worker = 'd'")
	d.record(p, candidates("b", "c", "d", "e")...)
	d.mustWait("b", "c", "d", "e")
}

// TestOneTokenForTwoResources: workers of two resources that bring the same token have the same incarnation.
func TestOneTokenForTwoResources(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	p := d.proxy("p")
	of := func(resource string) fencing.Candidate {
		return fencing.Candidate{Resource: resource, Worker: "w", Incarnation: fencing.TokenIncarnation(1, 7), State: fencing.CandidateLeading}
	}
	rows := func() string {
		return pgtest.Ask[string](t, d.server, d.db, "SELECT string_agg(resource, ' ' ORDER BY resource) FROM fencepost.candidates")
	}
	d.record(p, of("a"), of("b"))
	if got := rows(); got != "a b" {
		t.Errorf("the database knows of candidacies for %q", got)
	}
	d.record(p, of("b"))
	if got := rows(); got != "b" {
		t.Errorf("after one has left, the database knows of candidacies for %q", got)
	}
}

// TestManyCandidatesCostOneStatement: 200 resources with 50 workers each.
func TestManyCandidatesCostOneStatement(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	var all []fencing.Candidate
	for r := range 200 {
		for w := range 50 {
			all = append(all, fencing.Candidate{Resource: fmt.Sprintf("r%d", r), Worker: fmt.Sprintf("w%d", w), Incarnation: fmt.Sprintf("%d-%d", r, w), State: fencing.CandidateWaiting})
		}
	}
	statements := func() (n int64) {
		if err := d.server.Connect(t, pgtest.Control, d.db).QueryRow(t.Context(), "SELECT revision FROM fencepost.proxies").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	p := d.proxy("p")
	for n := range 3 {
		begin := time.Now()
		all[n].Silent = true
		d.record(p, all...)
		t.Logf("batch %d took %v", n+1, time.Since(begin))
		d.record(p, all...) // nothing has changed
	}
	if n := statements(); n != 3 {
		t.Errorf("it took %d batches", n)
	}
	var rows int
	if err := d.server.Connect(t, pgtest.Control, d.db).QueryRow(t.Context(), "SELECT count(*) FROM fencepost.candidates").Scan(&rows); err != nil || rows != len(all) {
		t.Errorf("%d rows (%v)", rows, err)
	}
}

// TestTheGapIsThatOfTheServersClock.
func TestTheGapIsThatOfTheServersClock(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.lead("a")
	p := d.proxy("p", "b")
	order := d.offer("b", time.Hour)
	if err := errors.Join(p.Stopped(t.Context(), order.ID, time.Now().Add(-2*time.Second)), p.Stopped(t.Context(), order.ID, time.Now()), p.Taken(t.Context(), order.ID, time.Now())); err != nil {
		t.Fatal(err)
	}
	s, err := handover.Look(context.Background(), d.fences.Pool(), resource, false)
	if err != nil || s.Order != order.ID || s.Former != "a" || s.From != 1 || s.Gap() < 2*time.Second || s.Gap() > time.Minute {
		t.Errorf("%+v, gap %v, %v", s, s.Gap(), err)
	}
	if _, err := handover.Look(t.Context(), d.fences.Pool(), "none", false); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("no such resource: %v", err)
	}
}

// TestANoteThatWaitsForAConnectionHasTheTimeOfWhatItNotes.
func TestANoteThatWaitsForAConnectionHasTheTimeOfWhatItNotes(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.lead("a")
	p := d.proxy("p", "b")
	order := d.offer("b", time.Hour)
	const wait = 200 * time.Millisecond
	stopped, noted := time.Now(), make(chan error, 1)
	held := d.fences.Pool().AcquireAllIdle(t.Context())
	for d.fences.Pool().Stat().AcquiredConns() < d.fences.Pool().Config().MaxConns {
		c, err := d.fences.Pool().Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	go func() { noted <- p.Stopped(t.Context(), order.ID, stopped) }()
	time.Sleep(time.Until(stopped.Add(wait)))
	for _, c := range held {
		c.Release()
	}
	if err := errors.Join(<-noted, p.Taken(t.Context(), order.ID, time.Now())); err != nil {
		t.Fatal(err)
	}
	if s, err := handover.Look(t.Context(), d.fences.Pool(), resource, false); err != nil || s.Gap() < wait {
		t.Errorf("the gap is %v (%v), want at least %v", s.Gap(), err, wait)
	}
}

// TestProxiesThatComeBackTogether: each has not been heard of for a minute, as when the database was out of reach, and deletes the
// other. That must not let them wait for each other.
func TestProxiesThatComeBackTogether(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.proxy("x", "a")
	d.proxy("y", "b")
	d.server.Exec(t, pgtest.Control, d.db, "UPDATE fencepost.proxies SET seen = now() - interval '2 minutes'")
	locker, err := d.server.Connect(t, pgtest.Control, d.db).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locker.Exec(t.Context(), "LOCK TABLE fencepost.running"); err != nil { // which both read after that
		t.Fatal(err)
	}
	ids := pgtest.Ask[[]string](t, d.server, d.db, "SELECT array_agg(id) FROM fencepost.proxies")
	var notes errgroup.Group
	for _, id := range ids {
		conn := d.server.Connect(t, pgtest.Control, d.db)
		notes.Go(func() error {
			_, err := conn.Exec(t.Context(), "SELECT fencepost.note_candidates($1, $1, 1, true, '{}', '{}', '{}', '{}', '{}', '{}', '{}')", id)
			return err
		})
	}
	for waits := 0; waits < 2; {
		waits = pgtest.Ask[int](t, d.server, d.db, "SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%note_candidates%'")
	}
	if err := locker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := notes.Wait(); err != nil {
		t.Error(err)
	}
}

// TestOneRecordsAfterAnother, with what is so then. Whoever waits for another one does so no longer than it may.
func TestOneRecordsAfterAnother(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	p := d.proxy("one", "a")
	began, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- p.Record(t.Context(), func() []fencing.Candidate {
			close(began)
			<-goOn
			return candidates("a", "b")
		})
	}()
	<-began
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	early := func() []fencing.Candidate {
		t.Error("the candidacies are listed while others are being recorded")
		return nil
	}
	if err := p.Record(ctx, early); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ends with %v", err)
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(d.waiting()); got != "[a b]" {
		t.Errorf("these wait: %s", got)
	}
}
