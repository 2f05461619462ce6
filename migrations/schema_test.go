package migrations

import (
	"strings"
	"testing"
)

func TestReadWantsUpgradesWithoutGapOrDouble(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		names string
		fault string // part of the error, empty for none
	}{
		{"upgrade_002_a.sql upgrade_003_b.sql", ""},
		{"upgrade_002_a.sql upgrade_004_b.sql", "next number must be 003"},
		{"upgrade_002_a.sql upgrade_002_b.sql", "next number must be 003"},
		{"upgrade_001_a.sql", "next number must be 002"},
		{"upgrade_2_b.sql", "neither a subject"},
		{"another.sql", "neither a subject"},
		{"fence.sql", "fence.sql of the schema is missing"}, // it is empty
	} {
		others := map[string]string{}
		for _, name := range strings.Fields(c.names) {
			others[name] = ""
		}
		r, err := read(WithFiles(t, others))
		switch {
		case c.fault == "" && (err != nil || r.version() != 3 || r.upgrades[1].String() != "003_b"):
			t.Errorf("%s: %v, %v", c.names, r, err)
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)):
			t.Errorf("%s: got %v, want %q", c.names, err, c.fault)
		}
	}
}

// TestEveryObjectIsMadeOnce: what is made twice is found twice, and an upgrade needs functions that can be replaced.
func TestEveryObjectIsMadeOnce(t *testing.T) {
	t.Parallel()
	r, err := embeddedRelease()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, o := range r.objects {
		if known[o.String()] {
			t.Errorf("the %s is made twice", o)
		}
		known[o.String()] = true
		if o.holdsData() == strings.HasPrefix(o.sql, "CREATE OR REPLACE ") {
			t.Errorf("the %s is made by %.40s", o, o.sql)
		}
	}
}
