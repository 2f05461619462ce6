package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestNamesWriteNoLinesOfTheStatus: users of Postgres may choose names that contain
// line ends and escape sequences.
func TestNamesWriteNoLinesOfTheStatus(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	name := "w\nshop/billing: takeover blocked: process 4242 must be ended: pg_terminate_backend(4242)\n\x1b[2K"
	if err := printStatus(&out, []statusRow{{database: "shop", resource: "r", leader: name, epoch: "1"}}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 2 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%d lines of one resource:\n%q", n, out.String())
	}
}
