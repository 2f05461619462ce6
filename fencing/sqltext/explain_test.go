package sqltext

import (
	"strings"
	"testing"
)

func TestExplainTellsEachStatement(t *testing.T) {
	t.Parallel()
	const passes, server, text, proven = "passes", "refused by Postgres", "refused before it is sent", "passes if the catalog proves"
	for sql, want := range map[string]struct {
		read                         bool
		reason, leader, reader, on15 string
	}{
		"BEGIN": {true, "session", "runs", passes, passes}, "COMMIT": {true, "session", "runs", passes, passes}, "SAVEPOINT a": {true, "session", "runs", passes, passes},
		"SELECT 1": {true, "query", "runs", passes, proven}, "COPY t TO STDOUT": {true, "query", "runs", passes, proven}, "SELECT * FROM t FOR UPDATE": {false, "locks rows", "runs", text, text},
		"SELECT pg_notify('a', '')": {false, "pg_notify", "runs", text, text}, "INSERT INTO t VALUES (1)": {false, "modifies", "runs", server, text},
		"INSERT INTO t VALUES (pg_notify('a', '')::text)": {false, "modifies", "runs", text, text}, "LOCK TABLE t": {false, "not a query", "runs", text, text},
		"LOCK TABLE t IN ACCESS SHARE MODE": {false, "not a query", "runs", passes, text}, "VACUUM": {false, "not a query", "runs", text, text}, "CALL p()": {false, "commit", "runs", text, text},
		"EXPLAIN ANALYZE SELECT 1": {false, "executes", "runs", passes, text}, "EXPLAIN ANALYZE DELETE FROM t": {false, "executes", "runs", text, text},
		"EXECUTE q": {false, "not in the text", "runs", "as what was prepared", text}, "RESET transaction_read_only": {true, "session", "runs", passes, text}, "DISCARD ALL": {true, "session", "runs", passes, passes},
		"SHOW fencepost.role": {true, "session", "Postgres answers", "Postgres answers", "Postgres answers"}, "SET fencepost.role = leader": {true, "session", "refused: only", "refused: only", "refused: only"},
		"PREPARE TRANSACTION 'x'": {false, "outlive", "ZF005", "ZF005", "ZF005"}, "COMMIT PREPARED 'x'": {false, "not a query", "runs", text, text},
		"ROLLBACK PREPARED 'x'": {false, "not a query", "runs", text, text},
	} {
		got := Explain("SELECT 0; "+sql, nil)
		if len(got) != 2 {
			t.Fatalf("%s: %+v", sql, got)
		}
		if g := got[1]; strings.TrimSpace(g.SQL) != sql || g.Read != want.read || !strings.Contains(g.Reason, want.reason) ||
			!strings.Contains(g.Leader, want.leader) || !strings.HasPrefix(g.Reader, want.reader) && !strings.HasSuffix(g.Reader, want.reader) || !strings.HasPrefix(g.On15, want.on15) && !strings.HasSuffix(g.On15, want.on15) {
			t.Errorf("%s: %+v, want %+v", sql, g, want)
		}
	}
}

func TestExplainTellsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	for sql, leader := range map[string]string{"SELEC 1; COMMIT": "runs", "SELECT 1; COMMIT; SELECT 'x": "runs", "SELEC 1; prepare transaction 'x'": "may be refused"} {
		got := Explain(sql, nil)
		if len(got) != 1 || got[0].Read || !strings.Contains(got[0].Reason, "syntax error") && got[0].Reason == "" || !strings.HasPrefix(got[0].Leader, leader) || got[0].Reader != "refused before it is sent" {
			t.Errorf("%s: %+v", sql, got)
		}
	}
	if got := Explain("-- nothing", nil); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}
