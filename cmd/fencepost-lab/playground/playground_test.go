package playground_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/playground"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// visitor uses a playground as its page does.
type visitor struct {
	t    *testing.T
	url  string
	temp string // where it keeps everything
	proc *process.Logged
}

var client = http.Client{Timeout: process.Patience, Transport: &http.Transport{DisableKeepAlives: true}}

// open starts a playground.
func open(t *testing.T) *visitor {
	t.Helper()
	temp, err := os.MkdirTemp("", "playground-test-") // short, and not only this user may enter it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(temp) })
	if err := os.Chmod(temp, 0o711); err != nil {
		t.Fatal(err)
	}
	v := &visitor{t: t, temp: temp}
	args := []string{"playground", "--listen", "127.0.0.1:0"}
	if bin := os.Getenv("FENCEPOST_TEST_PG_BIN"); bin != "" {
		args = append(args, "--postgres", bin)
	}
	cmd := exec.Command(process.Lab(t), args...)
	// What an operator has set for other servers does not matter.
	cmd.Env = process.Environment("TMPDIR="+temp, "PGSSLMODE=require", "PGOPTIONS=-c default_transaction_read_only=on")
	found := make(chan string, 1)
	address := regexp.MustCompile(`at (http://[^/]+)/`)
	v.proc = process.StartLogged(t, "fencepost-lab playground", cmd, func(line string) {
		if m := address.FindStringSubmatch(line); m != nil {
			found <- m[1]
		}
	})
	select {
	case v.url = <-found:
	case <-v.proc.Done:
		t.Fatalf("it has ended with code %d:\n%s", v.proc.Wait(t), v.proc.Log())
	}
	return v
}

// post asks for something, and returns the code of the answer.
func (v *visitor) post(path, body string) int {
	v.t.Helper()
	resp, err := client.Post(v.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		v.t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// do does a deed, which must succeed.
func (v *visitor) do(deed, who string) {
	v.t.Helper()
	if code := v.post("/do", fmt.Sprintf(`{"do":%q,"who":%q}`, deed, who)); code != http.StatusNoContent {
		v.t.Fatalf("%s %s: code %d", deed, who, code)
	}
}

func (v *visitor) enter(scene, algorithm string) {
	v.t.Helper()
	if code := v.post("/enter", fmt.Sprintf(`{"scene":%q,"algorithm":%q}`, scene, algorithm)); code != http.StatusNoContent {
		v.t.Fatalf("enter %s: code %d", scene, code)
	}
}

func (v *visitor) state() (s playground.State) {
	v.t.Helper()
	resp, err := client.Get(v.url + "/state")
	if err != nil {
		v.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		v.t.Fatal(err)
	}
	return s
}

// patience bounds every wait. A scene needs many processes, which share the machine with other tests.
const patience = 3 * process.Patience

// until waits for a state.
func (v *visitor) until(what string, wanted func(s playground.State) bool) (s playground.State) {
	v.t.Helper()
	if !process.Holds(patience, func() bool { s = v.state(); return wanted(s) }) {
		text, _ := json.MarshalIndent(s, "", " ")
		v.t.Fatalf("waited %s for %s: %s", patience, what, text)
	}
	return s
}

// step presses the button of the next step that has this one.
func (v *visitor) step(button string) {
	v.t.Helper()
	v.until("the button "+button, func(s playground.State) bool {
		return slices.ContainsFunc(s.Steps, func(step playground.Step) bool { return step.Button == button })
	})
	v.do("step", "")
}

// finish waits until all steps are done, and checks what holds whatever happened.
func (v *visitor) finish() playground.State {
	v.t.Helper()
	s := v.until("the last step", func(s playground.State) bool {
		return !slices.ContainsFunc(s.Steps, func(step playground.Step) bool { return step.State != "done" })
	})
	if s.Totals.Twice != 0 || s.Problem != "" {
		v.t.Errorf("%d numbers were written twice; problem %q", s.Totals.Twice, s.Problem)
	}
	return s
}

func name(id string) string {
	name, _, _ := strings.Cut(id, ":")
	return name
}

func TestScenes(t *testing.T) {
	t.Parallel()
	v := open(t)

	v.enter("crash", "")
	v.step("Start the workers")
	v.step("Kill the leader")
	v.step("Start it again")
	// On a busy machine a leader may be silent for too long, and be replaced once more.
	s := v.finish()
	if first, second := grantedTo(s, 1), grantedTo(s, 2); s.Totals.Grants < 2 || first == "" || second == "" || name(first) == name(second) {
		t.Errorf("after a crash: %+v, %+v", s.Lease, s.Ledger)
	}

	v.enter("pause", "")
	v.step("Start the workers")
	v.step("Freeze the leader while it writes")
	v.step("Thaw it")
	s = v.finish()
	if len(s.Audit) == 0 {
		t.Fatal("the audit log of the pause is empty")
	}
	if a := s.Audit[len(s.Audit)-1]; a.SQLState != "ZF001" || a.Epoch >= a.CurrentEpoch || a.Worker == a.CurrentWorker || a.Worker != grantedTo(s, a.Epoch) || a.CurrentWorker != grantedTo(s, a.CurrentEpoch) {
		t.Errorf("the audit log of the pause: %+v, the ledger %+v", s.Audit, s.Ledger)
	}

	v.enter("leaders", "bully")
	v.step("Start the nodes")
	v.step("Partition the network")
	s = v.until("both leaders, one of them refused", func(s playground.State) bool { return len(leaders(s)) == 2 && len(s.Audit) > 0 })
	first := s.Audit[len(s.Audit)-1]
	if got := leaders(s); !slices.Equal(got, []string{"node-2", "node-5"}) || first.SQLState != "ZF001" || name(first.Worker) != "node-5" || name(first.CurrentWorker) != "node-2" {
		t.Errorf("%v lead, and the first refusal is %+v", got, first)
	}
	v.step("Heal the network")
	if got := leaders(v.finish()); !slices.Equal(got, []string{"node-5"}) {
		t.Errorf("%v lead after the network has healed", got)
	}
	v.end(syscall.SIGINT)
}

// grantedTo returns to whom an epoch was granted, "" if that is not shown.
func grantedTo(s playground.State, epoch int64) string {
	for _, g := range s.Ledger {
		if g.Epoch == epoch {
			return g.Worker
		}
	}
	return ""
}

// leaders returns those who believe that they lead.
func leaders(s playground.State) (names []string) {
	for _, w := range s.Workers {
		if w.Leads {
			names = append(names, w.Name)
		}
	}
	return names
}

// TestFreePlay cuts the leader off, so that a write of it comes late, and plays what a visitor may press
// by mistake.
func TestFreePlay(t *testing.T) {
	t.Parallel()
	v := open(t)
	for what, code := range map[[2]string]int{
		{"/enter", `{"scene":"another"}`}:                       http.StatusNotFound,
		{"/enter", `{"scene":"leaders","algorithm":"another"}`}: http.StatusNotFound,
		{"/do", `{"do":"step","who":"worker-a"}`}:               http.StatusNotFound,
		{"/do", `{"do":"kill","who":"postgres"}`}:               http.StatusNotFound,
		{"/do", `{"do":"split"}`}:                               http.StatusNotFound, // there is no cluster
		{"/do", `{"do":"step","unknown":1}`}:                    http.StatusBadRequest,
		{"/do", `{"do":"` + strings.Repeat("x", 1<<16) + `"}`}:  http.StatusBadRequest,
		{"/do", `nothing`}:                                      http.StatusBadRequest,
		{"/state", `{}`}:                                        http.StatusMethodNotAllowed,
	} {
		if got := v.post(what[0], what[1]); got != code {
			t.Errorf("%s %.60s: code %d, want %d", what[0], what[1], got, code)
		}
	}
	v.enter("free", "")
	led := v.until("a leader that writes", func(s playground.State) bool { return s.Lease.Leader != "" && s.Totals.Written > 0 })
	leader := name(led.Lease.Leader)
	if code := v.post("/do", `{"do":"step"}`); code != http.StatusConflict {
		t.Errorf("a step that does not wait for anybody: code %d", code)
	}
	v.do("cut", leader)
	v.until("another leader that writes", func(s playground.State) bool {
		return s.Lease.Epoch > led.Lease.Epoch && len(s.Notes) > 0 && s.Notes[0].Epoch == s.Lease.Epoch
	})
	v.do("join", leader)
	v.until("the late write to be refused", func(s playground.State) bool {
		return slices.ContainsFunc(s.Workers, func(w playground.Worker) bool { return w.Name == leader && w.Refused > 0 })
	})
	for _, deed := range []string{"freeze", "freeze", "kill", "kill", "thaw", "start", "start", "cut", "freeze-writing", "heal"} {
		v.do(deed, map[bool]string{true: "", false: leader}[deed == "heal"])
	}
	if s := v.state(); s.Totals.Twice != 0 || s.Problem != "" {
		t.Errorf("%+v, problem %q", s.Totals, s.Problem)
	}
	v.end(syscall.SIGHUP)
}

// end ends the playground as Ctrl-C does, or as a terminal that is closed, and checks that nothing is left of it.
func (v *visitor) end(by syscall.Signal) {
	v.t.Helper()
	v.proc.Signal(v.t, by)
	if code := v.proc.Wait(v.t); code != 0 {
		v.t.Errorf("it has ended with code %d", code)
	}
	if log := v.proc.Log(); strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic") || v.t.Failed() {
		v.t.Errorf("it has printed:\n%s", process.Tail(log))
	}
	if left, err := filepath.Glob(filepath.Join(v.temp, "*")); err != nil || len(left) > 0 {
		v.t.Errorf("it has left %v", left)
	}
}

// TestTheElectorCannotBeConfigured: only the playground awards leases to anyone.
func TestTheElectorCannotBeConfigured(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(process.Program(t), "serve")
	cmd.Env = process.Environment("FENCEPOST_ELECTION_PROVIDER=anyone")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 78 || !strings.Contains(string(out), `"anyone"`) {
		t.Errorf("serve with that elector: %v\n%s", err, out)
	}
}
