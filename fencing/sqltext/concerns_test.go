package sqltext

import (
	"strings"
	"testing"
)

// TestConcernsFencepost: a relayed text that concerns Fencepost is found wherever its words stand.
func TestConcernsFencepost(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"":                                      false,
		"SELECT 1":                              false,
		"f":                                     false,
		"p":                                     false,
		"INSERT INTO fence VALUES ('post')":     false,
		"PREPARE p AS SELECT 1":                 false,
		"START TRANSACTION":                     false,
		"START TRANSACTION; PREPARE p AS x":     false,
		"PREPAR TRANSACTION 'x'":                false,
		"SHOW fencepost.epoch":                  true,
		"show FencePost.Epoch":                  true,
		"SET LOCAL fencepost.resource = 'a'":    true,
		"ffencepost":                            true,
		"SELECT current_setting('FENCEPOST'":    true,
		"PREPARE TRANSACTION 'x'":               true,
		"prepare/* c */\n-- c\nTransaction 'x'": true,
		"pprepare p AS x; preparetransaction":   true,
		strings.Repeat("p", 1<<16) + "repare":   false,
		strings.Repeat("prepare ", 1<<20):       false, // in a time that grows with the length
		strings.Repeat("x", 1<<16) + "; prepare transaction 'x'": true,
	} {
		if got := ConcernsFencepost([]byte(sql)); got != want {
			t.Errorf("%.60q: %t, want %t", sql, got, want)
		}
	}
}

// TestPreparesTransaction: between the two words may be what Postgres skips, and nothing else.
func TestPreparesTransaction(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"prepare transaction 'x'":                     true,
		"select 1; PREPARE\v\f\tTransaction 'x'":      true,
		"prepare /*/**/*/ transaction 'x'":            true,
		"prepare/**//* /* */ */--\n-- c\rtransaction": true,
		"prepare --x\rtransaction 'x'":                true,
		"prepare /* /* */ transaction 'x'":            false, // the comment has no end
		"prepare -- transaction 'x'":                  false,
		"prepare p as select 1; start transaction":    false,
		"prepare": false,
	} {
		if got := PreparesTransaction([]byte(sql)); got != want {
			t.Errorf("%q: %t, want %t", sql, got, want)
		}
	}
}
