package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// TestNamesThatAreCloseAreNoticed: in the log once for each new resource, and by the commands status and doctor. Resources
// that the configuration names, and numbered ones, are meant to be several.
func TestNamesThatAreCloseAreNoticed(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := servicetest.Start(t, s, func(c *config.Config) {
		c.Resources = map[string]config.Resource{"billing": {}, "billings": {}, "mail-out": {}}
	})
	for _, resource := range []string{"billing", "billings", "shard-7", "shard-8", "biling", "Mail_Out"} {
		_ = r.Connect(t, db, "fencepost.worker=w&fencepost.resource="+resource)
	}
	const warning = "the name of a new resource is close to that of another one, and each has a leader of its own"
	again := servicetest.Start(t, s, nil)
	_ = again.Connect(t, db, "fencepost.campaign=off&fencepost.resource=biling")
	if lines := again.Log.Lines(t, warning); len(lines) > 0 {
		t.Errorf("of a resource that is not new, the log says %v", lines)
	}
	var got []string
	for _, l := range r.Log.Lines(t, warning) {
		if l["database"] != db || l["level"] != "warn" || !strings.Contains(fmt.Sprint(l["remedy"]), "unknown_resources: deny") {
			t.Errorf("the log says %v", l)
		}
		got = append(got, fmt.Sprint(l["resource"], " ", l["close_to"]))
	}
	if want := "biling [billing], Mail_Out [mail-out]"; strings.Join(got, ", ") != want {
		t.Errorf("the log warns of %s, want %s", got, want)
	}
	const note = "/%s: its name is close to %s, and each has a leader of its own: if they mean the same, correct one\n"
	for source, billing := range map[string]string{"--admin=" + r.AdminAddress().String(): "biling", "--dsn=" + s.DSN(pgtest.Control, db): "biling, billings"} {
		var want string
		for _, n := range [][2]string{{"biling", "billing"}, {"billing", billing}} {
			want += db + fmt.Sprintf(note, n[0], n[1])
		}
		if strings.HasPrefix(source, "--dsn") { // it does not know the configuration
			want += db + fmt.Sprintf(note, "billings", "billing")
		}
		out := runCommand(t, nil, "status", source)
		var got string
		for line := range strings.Lines(out.stdout) {
			if strings.HasPrefix(line, db+"/") {
				got += line
			}
		}
		if got != want {
			t.Errorf("%s: %s\nwant\n%s", source, out.stdout, want)
		}
	}
	out := runCommand(t, nil, "doctor", "--dsn", s.DSN(pgtest.Superuser, db), "--json")
	if !strings.Contains(out.stdout, `"id": "resource-names"`) || !strings.Contains(out.stdout, `close to each other: \"biling\" and \"billing\", \"billing\" and \"billings\"`) {
		t.Errorf("the doctor says %s%s", out.stdout, out.stderr)
	}
}
