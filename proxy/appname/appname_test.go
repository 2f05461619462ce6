package appname

import (
	"strings"
	"testing"
)

func TestOf(t *testing.T) {
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
		got := Of(c.client, c.resource, c.worker)
		if got != c.want || len(got) > max {
			t.Errorf("%q, %q, %q: %q (%d bytes), want %q", c.client, c.resource, c.worker, got, len(got), c.want)
		}
	}
}

func TestIs(t *testing.T) {
	t.Parallel()
	if !Is("application_name") || !Is("Application_Name") || Is("application") {
		t.Error("a name is not compared as Postgres does")
	}
}
