package sqltext

import (
	"strings"
	"testing"
)

func TestQuickTakesWhatModifies(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]Command{
		"INSERT INTO t VALUES ($1, $2)": Insert, " \n\t\r\fInsert into t values (1) ; \n;": Insert, "update t set a=1": Update, "DELETE FROM t": Delete, "delete from t;": Delete,
		"MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE": Merge, "update\"t\" set a = '--' -- x": Update,
	} {
		got, ok := Quick([]byte(sql))
		full := Analyze(sql, DefaultSettings)
		if !ok || got.Command != want || got.Read || len(full.Statements) != 1 || full.Statements[0].Command != want || strings.Trim(sql[got.End:], "; \n") != "" {
			t.Errorf("Quick(%q) = %+v, %v; want %s; the grammar says %s", sql, got, ok, want, describe(sql, full))
		}
	}
}

func TestQuickLeavesTheRestToTheGrammar(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"", " ", ";", "DELETE FROM t; DELETE FROM u", "DELETE FROM t WHERE b = ';'", "DELETE FROM t\x00", "-- x\nDELETE FROM t", "/* x */ DELETE FROM t",
		"INSERTED", "insert_1", "UPDATE$1", "UPDATE1", "UPDATE\xe4", "SELECT 1", "WITH x AS (SELECT 1) INSERT INTO t SELECT 1", "BEGIN", "EXPLAIN DELETE FROM t", "CALL p()",
	} {
		if got, ok := Quick([]byte(sql)); ok {
			t.Errorf("Quick(%q) = %v", sql, describeStatement(&got))
		}
	}
}
