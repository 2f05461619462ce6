package migrations

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestListWantsNumbersWithoutGapOrDouble(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		names string
		fault string // part of the error, empty for none
	}{
		{"001_a.sql 002_b.sql", ""},
		{"001_a.sql 003_b.sql", "next number must be 002"},
		{"001_a.sql 001_b.sql", "next number must be 002"},
		{"002_a.sql", "next number must be 001"},
		{"001_a.sql 2_b.sql", "must have the form"},
		{"", "no migrations"},
	} {
		dir := fstest.MapFS{}
		for _, name := range strings.Fields(c.names) {
			dir[name] = &fstest.MapFile{Data: []byte("SELECT 1")}
		}
		files, err := list(dir)
		switch {
		case c.fault == "" && (err != nil || len(files) != 2 || files[1].version != 2 || files[1].name != "b"):
			t.Errorf("%s: %v, %v", c.names, files, err)
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)):
			t.Errorf("%s: got %v, want %q", c.names, err, c.fault)
		}
	}
}
