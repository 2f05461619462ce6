package system

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

// long is a TTL longer than any test, so that no lease expires.
const long = "LEASE_TTL=120s"

// released reports whether a worker's lease was released for silence, and has not been
// reacquired since.
func released(p *process.Server, worker string) bool {
	return len(p.Lines("released", "worker", worker, "reason", "silence")) > len(p.Lines("lease reacquired under the same epoch", "worker", worker))
}

// TestAWorkerThatPromisesHeartbeatsIsMissedSoon freezes a worker that had promised heartbeats.
// Another one that writes nothing, and whose heartbeats go on, keeps its lease.
func TestAWorkerThatPromisesHeartbeatsIsMissedSoon(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long))
	one, two := h.proxy(), h.proxy()
	start := func(name string) *worker {
		w := h.worker(name)
		dsn := h.dsn(one, name, "resource", name, "campaign", "wait", "worker_timeout", "1h", "heartbeat", beat.String())
		w.must("connect", dsn)
		w.must("beat", dsn)
		return w
	}
	frozen, idle := start("frozen"), start("idle")
	frozen.must("simple", "INSERT INTO work VALUES ('frozen')")
	rival := h.join(two, "rival", "resource", "idle")
	for _, name := range []string{"frozen", "idle"} {
		process.Eventually(t, process.Patience, name+" to have promised heartbeats", func() bool {
			w := h.judged(one, name)
			return w.Timeout != nil && *w.Timeout < 10 && w.Heartbeat == beat.Seconds()
		})
	}
	since := time.Now()
	frozen.Freeze(t)
	h.join(two, "successor", "resource", "frozen", "campaign", "wait").must("INSERT INTO work VALUES ('successor')")
	took := one.Await(t, "released", "worker", "frozen", "reason", "silence").At(t).Sub(since)
	if took < 3*time.Second { // its last heartbeat may have been late
		t.Errorf("the frozen worker was missed after %s, want about 6.6 s", took)
	}
	frozen.tell(order{Do: "simple", Text: "INSERT INTO work VALUES ('stale')"})
	frozen.Thaw(t)
	if f := frozen.answer().Failure; f == nil || f.Code != fencing.StateSuperseded {
		t.Errorf("the thawed worker's write: %v; want ZF001", f)
	}
	if got := strings.Join(h.works(), " "); got != "frozen successor" {
		t.Errorf("the table contains %q", got)
	}
	if err := rival.exec("INSERT INTO work VALUES ('rival')"); stateOf(err) != fencing.StateNotLeader || len(one.Lines("released", "worker", "idle")) > 0 {
		t.Errorf("a write beside a worker that sends only heartbeats: %v; want ZF002", err)
	}
	idle.must("simple", "INSERT INTO work VALUES ('idle')")
}

// judgment is what a proxy shows of a worker's liveness.
type judgment struct {
	Timeout   *float64 `json:"worker_timeout_seconds"`
	Heartbeat float64  `json:"heartbeat_seconds"`
}

// judged returns what a proxy shows of the only worker that it has for a resource.
func (h *cluster) judged(p *process.Server, resource string) judgment {
	h.t.Helper()
	var shown struct {
		Workers []judgment `json:"workers"`
	}
	_, body := p.Get(h.t, "/v1/resources/"+h.db+"/"+resource)
	if err := json.Unmarshal([]byte(body), &shown); err != nil || len(shown.Workers) != 1 {
		h.t.Fatalf("%v in %s", err, body)
	}
	return shown.Workers[0]
}
