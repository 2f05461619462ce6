package sqltext

import "testing"

// TestKeptSince16: what pg_dump sends, and what EXPLAIN ANALYZE reads, is told from what writes.
func TestKeptSince16(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"lock table a, b in access share mode": true, "lock table a in row share mode": false, "lock table a": false,
		"select set_config('transaction_read_only', 'off', true)": false,
		"select set_config(name, 'view', false) from pg_settings": true, "select set_config(name, 'view', false) from pg_settings for update": false,
		"select set_config(name, pg_notify('a', 'b')::text, false) from pg_settings":  false,
		"with w as (delete from t returning a) select set_config(a, '', true) from w": false,
		"select set_config(name, '', true) into made from pg_settings":                false,
		"copy (select set_config(name, '', true) from pg_settings) to stdout":         false, "select 1": false, "vacuum": false,
		"explain analyze select f(a) from t": true, "explain (analyze, buffers) with w as (select 1) table w": true,
		"explain analyze select set_config(name, 'view', false) from pg_settings": true, "explain analyze select set_config('transaction_read_only', 'off', true)": false,
		"explain analyze select a from t for share": false, "explain analyze with w as (delete from t returning a) table w": false,
		"explain analyze select pg_notify('a', 'b')": false, "explain analyze select 1 into made": false, "explain analyze create table made as select 1": false,
		"explain analyze insert into t select 1": false, "explain analyze execute p": false, "explain analyze declare c cursor for select 1": false,
		"explain analyze refresh materialized view v": false,
	} {
		text := Analyze(sql, DefaultSettings)
		if !text.Known || len(text.Statements) != 1 || text.Statements[0].KeptSince16 != want {
			t.Errorf("%s: %+v, want %t", sql, text.Statements, want)
		}
	}
}
