package startup

import (
	"strings"
	"testing"
)

func TestNameWorker(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100)
	for _, c := range []struct{ client, resource, worker, want string }{
		{"", "billing", "host-7:4242", "billing/host-7:4242"},
		{"psql", "billing", "host-7:4242", "psql [billing/host-7:4242]"},
		{"", "billing", long, "billing/" + long[:55]},
		{long, "billing", "host-7:4242", long[:63-len(" [billing/host-7:4242]")] + " [billing/host-7:4242]"},
		{"psql", "billing", long, "[billing/" + long[:52] + "]"},
		{"é", "bücher", "w\x01", `\u00e9 [b\u00fccher/w\u0001]`},
	} {
		got := NameWorker(c.client, c.resource, c.worker)
		if got != c.want || len(got) > maxName {
			t.Errorf("%q, %q, %q: %q (%d bytes), want %q", c.client, c.resource, c.worker, got, len(got), c.want)
		}
	}
}

func TestIsApplicationName(t *testing.T) {
	t.Parallel()
	if !isApplicationName("application_name") || !isApplicationName("Application_Name") || isApplicationName("application") {
		t.Error("a name is not compared as Postgres does")
	}
}
