package sqltext

import "testing"

// TestOnlyInBlock covers statements that Postgres refuses outside a block, or that have
// no effect there. A cursor WITH HOLD can be opened there.
func TestOnlyInBlock(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"lock table t": true, "savepoint s": true, "set constraints all deferred": true, "declare c cursor for select 1": true,
		"declare c no scroll cursor without hold for select 1": true, "declare c cursor with hold for select 1": false,
		"set local a.b to 1": true, "set local work_mem to default": true, "set local time zone 'UTC'": true,
		"set transaction read only": true, "set transaction snapshot 'a'": true,
		"set a.b to 1": false, "set transaction_read_only to on": false, "reset work_mem": false,
		"set session characteristics as transaction read only": false, "set local fencepost.epoch to 1": false,
		"release s": false, "fetch c": false, "select 1": false, "begin": false,
	} {
		if got := Analyze(sql, DefaultSettings).Statements[0].RequiresTransactionBlock; got != want {
			t.Errorf("%s is for blocks alone: %v, want %v", sql, got, want)
		}
	}
}
