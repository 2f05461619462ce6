package sqltext

import (
	"strings"
	"testing"
)

func TestExplainTellsEachStatement(t *testing.T) {
	t.Parallel()
	got := Explain("BEGIN; SELECT * FROM t FOR UPDATE; SELECT pg_notify('a', ''); SELECT 1; COMMIT; SHOW fencepost.role; PREPARE TRANSACTION 'x'; VACUUM; DISCARD ALL; EXECUTE q")
	want := []struct {
		sql    string
		kind   Kind
		read   bool
		reason string
		check  string
	}{
		{"BEGIN", Begin, true, "command of the session", "behind it"},
		{" SELECT * FROM t FOR UPDATE", Ordinary, false, "locks rows", "in front"},
		{" SELECT pg_notify('a', '')", Ordinary, false, "pg_notify", "in front"},
		{" SELECT 1", Ordinary, true, "query", "in front"},
		{" COMMIT", Commit, true, "session", "checked again"},
		{" SHOW fencepost.role", ShowFence, true, "session", "answers"},
		{" PREPARE TRANSACTION 'x'", Refused, false, "outlive", "ZF005"},
		{" VACUUM", NonTransactional, false, "refuses", "only by itself"},
		{" DISCARD ALL", Discard, true, "session", "prepared again"},
		{" EXECUTE q", ByMessage, false, "not in the text", "in front"},
	}
	if len(got) != len(want) {
		t.Fatalf("%d explanations, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.SQL != w.sql || g.Kind != w.kind || g.Read != w.read || !g.Known ||
			!strings.Contains(g.Reason, w.reason) || !strings.Contains(g.Check, w.check) {
			t.Errorf("%d: %+v, want %+v", i, g, w)
		}
	}
}

func TestExplainTellsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	if got := Explain("SELEC 1; COMMIT"); len(got) != 1 || got[0].Known || got[0].Read || !strings.Contains(got[0].Reason, "syntax error") {
		t.Errorf("%+v", got)
	}
	if got := Explain("SELECT 1; COMMIT; SELECT 'x"); len(got) != 1 || got[0].Known || got[0].Read || !strings.Contains(got[0].Check, "registry") {
		t.Errorf("%+v", got)
	}
	if got := Explain("-- nothing"); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	if got := Explain("BEGIN; LOCK TABLE t"); len(got) != 2 || !strings.Contains(got[1].Check, "registry") {
		t.Errorf("LOCK TABLE: %+v", got)
	}
	if got := Explain("CALL p()"); len(got) != 1 || !strings.Contains(got[0].Check, "registry") {
		t.Errorf("%+v", got)
	}
}

func TestExplainTellsWhatFollowsALock(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{ // whether each statement is said to go behind a LOCK TABLE
		"BEGIN; LOCK TABLE t; INSERT INTO t VALUES (1); EXECUTE q; SAVEPOINT a; COMMIT; INSERT INTO t VALUES (1)": "001110" + "0",
		"BEGIN; SET LOCAL work_mem = '1MB'; LOCK TABLE t; LOCK TABLE u; SELECT 1; SHOW work_mem":                  "000010",
		"BEGIN; SELECT 1; LOCK TABLE t; SELECT 2":                                                                 "0000",
		"BEGIN; SAVEPOINT a; LOCK TABLE t; SELECT 2":                                                              "0000",
		"BEGIN; LOCK TABLE t; COMMIT AND CHAIN; SELECT 1":                                                         "0000",
		"BEGIN; LOCK TABLE t; ROLLBACK; BEGIN; DELETE FROM t":                                                     "00000",
	} {
		got := ""
		for _, e := range Explain(sql) {
			if strings.HasPrefix(e.Check, "none behind a LOCK TABLE") {
				got += "1"
			} else {
				got += "0"
			}
		}
		if got != want {
			t.Errorf("%s: %s, want %s", sql, got, want)
		}
	}
}
