package consultest_test

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRestoreBringsBackWhatWasThere(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t)
	a.Request(t, http.MethodPut, "/v1/kv/x", []byte("before"))
	snapshot := a.Snapshot(t)
	a.Request(t, http.MethodPut, "/v1/kv/x", []byte("after"))
	a.Restore(t, snapshot)
	if got := string(a.Request(t, http.MethodGet, "/v1/kv/x?raw", nil)); got != "before" {
		t.Errorf("x is %q", got)
	}
	b := consultest.Start(t)
	b.Restore(t, snapshot)
	if got := string(b.Request(t, http.MethodGet, "/v1/kv/x?raw", nil)); got != "before" {
		t.Errorf("x of another cluster is %q", got)
	}
}

func TestShortSessionsUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	shared := consultest.Shared(t)
	answer := string(shared.Request(t, http.MethodPut, "/v1/session/create", []byte(`{"TTL": "1s"}`)))
	if !strings.Contains(answer, "ID") {
		t.Errorf("a session of 1s: %s", answer)
	}
	if again := consultest.Shared(t); again != shared {
		t.Error("there are two shared agents")
	}
}

func TestACLDeniesWhatNobodyAllowed(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.WithACL())
	a.Request(t, http.MethodPut, "/v1/kv/x", []byte("by the management token"))
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Get("http://" + a.Addr() + "/v1/kv/x")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("a read without a token: %s", resp.Status)
	}
}

func TestStoppedAgentLeavesNothing(t *testing.T) {
	t.Parallel()
	before, err := os.ReadDir(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := consultest.Start(t)
	a.Stop()
	a.Stop() // twice is harmless
	if _, err := http.Get("http://" + a.Addr() + "/v1/status/leader"); err == nil {
		t.Error("it still responds")
	}
	known := map[string]bool{}
	for _, entry := range before {
		known[entry.Name()] = true
	}
	// Other tests start agents, whose files are there for a moment.
	stopwatch.Eventually(t, time.Minute, "nothing of it is left", func() bool {
		after, err := os.ReadDir(os.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(after, func(entry os.DirEntry) bool {
			return strings.HasPrefix(entry.Name(), "consul-") && !known[entry.Name()]
		})
	})
}
