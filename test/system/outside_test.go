package system

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestATakeoverIsSeenFromOutside checks the metrics, the admin address, the status
// command, and the audit line of the refused write.
func TestATakeoverIsSeenFromOutside(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	one, two := h.proxy(), h.proxy()
	leader := h.worker("leader")
	leader.must("connect", h.dsn(one, "leader", "campaign", "wait", "worker_timeout", "15s"))
	leader.must("extended", "INSERT INTO work VALUES ('leader')")
	h.shows(one, 1, "leader", 0)
	leader.Freeze(t)
	successor := h.join(two, "successor", "campaign", "wait")
	successor.must("INSERT INTO work VALUES ('successor')")
	leader.tell(order{Do: "extended", Text: "UPDATE work SET what = 'secret' WHERE what = 'leader'"})
	leader.Thaw(t)
	if f := leader.answer().Failure; f == nil || f.Code != fencing.StateSuperseded {
		t.Fatalf("the thawed leader's write: %v", f)
	}
	h.audited(one.Await(t, "stale write rejected", "worker", "leader"), one.ID)
	h.shows(one, 2, "successor", 1)
	h.shows(two, 2, "successor", 0)
	h.lists(one, two)
	process.Eventually(t, process.Patience, "the session of the superseded worker to be gone", func() bool {
		_, metrics := one.Get(t, "/metrics")
		return strings.Contains(metrics, "\nfencepost_sessions 0\n")
	})
}

// audited compares the audit line with the refused write.
func (h *cluster) audited(line process.LogLine, proxy string) {
	h.t.Helper()
	for key, want := range map[string]string{
		"logger": "audit", "level": "warn", "resource": resource, "current_worker": "successor", "sqlstate": fencing.StateSuperseded,
		"statement": "UPDATE work SET what = $1 WHERE what = $2", "database": h.db, "user": pgtest.App, "proxy": proxy,
	} {
		if got := line.Text(key); got != want {
			h.t.Errorf("audit line: %s is %q, want %q", key, got, want)
		}
	}
	if line.Number("epoch") != 1 || line.Number("current_epoch") != 2 {
		h.t.Errorf("audit line: epochs %v and %v", line["epoch"], line["current_epoch"])
	}
	if text := fmt.Sprint(line); strings.Contains(text, "secret") {
		h.t.Errorf("the audit line shows a literal: %s", text)
	}
}

// shows checks what a proxy's admin address returns. refused is how many writes the
// proxy has refused with ZF001.
func (h *cluster) shows(p *process.Server, epoch int, leader string, refused int) {
	h.t.Helper()
	for _, path := range []string{"/healthz", "/readyz"} {
		awaitOK(h.t, p, path)
	}
	lines := []string{
		fmt.Sprintf("fencepost_epoch{database=%q,resource=%q} %d\n", h.db, resource, epoch),
	}
	if refused > 0 {
		lines = append(lines, fmt.Sprintf("fencepost_stale_writes_rejected_total{database=%q,reason=\"ZF001\",resource=%q} %d\n", h.db, resource, refused))
	}
	process.Eventually(h.t, process.Patience, fmt.Sprintf("/metrics to show %q", lines), func() bool {
		_, metrics := p.Get(h.t, "/metrics")
		for _, line := range lines {
			if !strings.Contains(metrics, line) {
				return false
			}
		}
		return true
	})
	var view struct {
		Leader  string
		Epoch   int
		Refused int `json:"refused_writes"`
	}
	what := fmt.Sprintf("/v1/resources to show leader %s, epoch %d, %d refused", leader, epoch, refused)
	process.Eventually(h.t, process.Patience, what, func() bool {
		code, body := p.Get(h.t, "/v1/resources/"+h.db+"/"+resource)
		if err := json.Unmarshal([]byte(body), &view); err != nil || code != http.StatusOK {
			h.t.Fatalf("/v1/resources: %d %s: %v", code, body, err)
		}
		return view.Leader == leader && view.Epoch == epoch && view.Refused == refused
	})
}

// awaitOK waits until a path of the admin address answers 200. A server that gets no processor for seconds makes its
// proxy unready for as long.
func awaitOK(t testing.TB, p *process.Server, path string) {
	t.Helper()
	var code int
	var body string
	if !process.Holds(process.Patience, func() bool { code, body = p.Get(t, path); return code == http.StatusOK }) {
		t.Errorf("%s: %d %s", path, code, body)
	}
}

// lists checks the table of the status command, which queries a proxy or reads the
// database.
func (h *cluster) lists(one, two *process.Server) {
	h.t.Helper()
	for _, p := range []*process.Server{one, two} {
		code, table := h.command("status", "--admin", p.Admin)
		if code != 0 {
			h.t.Errorf("status: code %d", code)
		}
		if wrong := h.tableDiffers(table, "led", "successor"); wrong != "" {
			h.t.Error(wrong)
		}
	}
	h.awaitInDatabase("led", "successor")
}
