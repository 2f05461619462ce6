package system

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
)

// event is one line of a history.
type event struct {
	at   time.Time
	who  string
	text string
}

// outcome is what a worker knows about one of its increments.
type outcome uint8

const (
	unknown outcome = iota // no reply, or the connection ended with it
	refused                // an error, and the connection stayed open: nothing of it may be there
	acknowledged
)

type attempt struct {
	worker string
	seq    int
}

// history records everything that loads and faults did in one run.
type history struct {
	t       testing.TB
	readers sync.WaitGroup

	mu struct {
		sync.Mutex
		events   []event
		outcomes map[attempt]outcome
		codes    map[string]int // failures by SQLSTATE
		done     []time.Time    // times of acknowledged increments, as reported
		told     map[int64]string
	}
}

func newHistory(t testing.TB) *history {
	r := &history{t: t}
	r.mu.outcomes, r.mu.codes, r.mu.told = map[attempt]outcome{}, map[string]int{}, map[int64]string{}
	return r
}

// note records an action of the test.
func (r *history) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.events = append(r.mu.events, event{time.Now(), "TEST", fmt.Sprintf(format, args...)})
}

// load starts a worker's load; it ends with the worker, or with halt.
func (r *history) load(w *worker, plan loadPlan) {
	r.t.Helper()
	plan.Worker = w.name
	w.tell(order{Do: "load", Load: &plan})
	r.readers.Go(func() {
		for report := range w.reports {
			r.add(w.name, report)
		}
	})
}

// halt ends the loads of these workers in an orderly way, and returns when all workers'
// reports are in the history.
func (r *history) halt(workers []*worker) {
	r.t.Helper()
	for _, w := range workers {
		w.Thaw(r.t)
		_ = w.orders.Close() // already closed for a worker that was killed
	}
	for _, w := range workers {
		select {
		case <-w.Done:
		case <-time.After(process.Patience):
			r.t.Errorf("%s did not end within %s", w.name, process.Patience)
			w.Kill(r.t)
		}
	}
	r.readers.Wait()
}

func (r *history) add(worker string, report report) {
	d, f := report.Did, report.Failure
	if d == nil {
		return
	}
	text := fmt.Sprintf("%s epoch %d", d.What, d.Epoch)
	if d.Seq > 0 {
		text += fmt.Sprintf(" seq %d value %d (%s)", d.Seq, d.Value, d.Style)
	}
	if f != nil {
		text += ": " + f.String()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.events = append(r.mu.events, event{d.At, worker, text})
	id := attempt{worker, d.Seq}
	switch {
	case d.What == "told":
		if other := r.mu.told[d.Epoch]; other != "" && other != worker {
			r.t.Errorf("epoch %d was announced to %s and to %s", d.Epoch, other, worker)
		}
		r.mu.told[d.Epoch] = worker
	case d.What == "tries":
		r.mu.outcomes[id] = unknown
	case d.What == "done":
		r.mu.outcomes[id] = acknowledged
		r.mu.done = append(r.mu.done, d.At)
	case d.What == "failed":
		r.mu.codes[f.Code]++
		if d.Seq > 0 && f.Severity == "ERROR" {
			r.mu.outcomes[id] = refused
		}
	}
}

// successes returns how many increments were acknowledged.
func (r *history) successes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.done)
}

// summary counts outcomes and failures.
func (r *history) summary() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := map[outcome]int{}
	for _, o := range r.mu.outcomes {
		counts[o]++
	}
	return fmt.Sprintf("%d acknowledged, %d refused, %d unknown; %d epochs told; failures by SQLSTATE: %v",
		counts[acknowledged], counts[refused], counts[unknown], len(r.mu.told), r.mu.codes)
}

// refusals returns how many failures had that SQLSTATE.
func (r *history) refusals(code string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.codes[code]
}

// String formats the whole history in order of time, with times relative to its start.
func (r *history) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := slices.Clone(r.mu.events)
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "%9.3f %-10s %s\n", e.at.Sub(events[0].at).Seconds(), e.who, e.text)
	}
	return b.String()
}
