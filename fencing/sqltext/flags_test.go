package sqltext

import "testing"

// flags returns the properties of a statement, other than its Kind, that the proxy acts
// on, as letters: x DescribesLate, c CopiesIn, t PreparesTransaction, h Hides, f MayFreeNames, m
// Modifies, s TakesSnapshot, i SetsIsolation, r ChoosesReadOnly.
func flags(st *Statement) string {
	out := ""
	for _, f := range []struct {
		set    bool
		letter string
	}{
		{st.DescribesLate, "x"}, {st.CopiesIn, "c"}, {st.PreparesTransaction, "t"}, {st.Hides, "h"}, {st.MayFreeNames, "f"}, {st.Command != NoCommand, "m"},
		{st.TakesSnapshot, "s"}, {st.SetsIsolation, "i"}, {st.ChoosesReadOnly, "r"},
	} {
		if f.set {
			out += f.letter
		}
	}
	return out
}

// TestFlags checks that the flags come from the tree and not from words at the start of
// the text or elsewhere in it.
func TestFlags(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"execute p": "x", "/* prepare */ EXECUTE p (1)": "x", "prepare p as select 1": "", "explain execute p": "s",
		"prepare transaction 'x'": "t", "-- x\nPREPARE /**/ TRANSACTION 'x'": "t", "commit prepared 'x'": "", "rollback prepared 'x'": "",
		"call p()": "hs", "do $$begin null; end$$": "h", "call p('deallocate all')": "hfs", "do $$begin execute 'Discard all'; end$$": "hf",
		"do $$begin execute 'PREPARE p as select 1'; end$$": "hf", "do $$begin null; end$$; -- discard": "h", "vacuum t": "", "select 'deallocate'": "s",
		"insert into t values (1)": "ms", "update t set a = 1": "ms", "delete from t": "ms", "merge into t using u on true when matched then delete": "ms",
		" /* x */ insert into t values (1)": "ms", "with x as (select 1) insert into t select * from x": "ms", "with x as (delete from t returning *) select * from x": "s",
		"select current_query()": "s", "with x as (select current_query()) select * from x": "s", "with x as (delete from t returning current_query()) select * from x": "xs",
		"insert into t values (current_query())": "xms", "explain select current_query()": "xs", "values (current_query())": "s",
		"select 1": "s", "( (select 1))": "s", "values (1)": "s", "table t": "s", "with x as (select 1) select * from x": "s", "select 1 into x": "s", "-- x\nselect 1": "s",
		"explain analyze delete from t": "s", "declare c cursor for select 1": "s", "fetch c": "", "copy (select 1) to stdout": "", "copy t from stdin": "c", "copy t from '/x'": "", "copy t from program 'x'": "", "lock table t": "", "create table x ()": "",
		"set x = 'select 1'": "", "show x": "", "begin": "", "commit": "",
		"begin isolation level serializable": "i", "start transaction read only, isolation level repeatable read": "ir", "begin read only": "r", "begin read write, deferrable": "i", "begin read write": "",
		"set transaction isolation level serializable": "i", "set transaction read only": "r", "set transaction read write": "", "set transaction_read_only = on": "r", "set transaction_read_only to default": "r", "set transaction snapshot 'x'": "i", "set transaction_isolation = 'serializable'": "i",
		"set transaction_isolation to default": "i", "reset transaction_isolation": "", "set transaction_read_only = off": "", "set transaction_read_only to 'No'": "", "set transaction_deferrable = on": "i",
		"set session characteristics as transaction isolation level serializable": "", "set default_transaction_isolation = 'serializable'": "", "set x = 'isolation'": "",
	} {
		text := Analyze(sql, DefaultSettings)
		if len(text.Statements) != 1 {
			t.Errorf("%s: %s", sql, describe(sql, text))
			continue
		}
		if got := flags(&text.Statements[0]); got != want {
			t.Errorf("%q has the flags %q, want %q", sql, got, want)
		}
		agreeWithQuick(t, sql, text)
	}
}

// TestFlagsOfSeveral checks that each statement's flags come from its own part of the
// text.
func TestFlagsOfSeveral(t *testing.T) {
	t.Parallel()
	text := Analyze("call p('discard all'); call p(); begin read only; select 'isolation'", DefaultSettings)
	got := ""
	for i := range text.Statements {
		got += flags(&text.Statements[i]) + ";"
	}
	if want := "hfs;hs;r;s;"; got != want {
		t.Errorf("the flags %q, want %q", got, want)
	}
}

func TestQuickTellsWhatModifies(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"select 1": "s", " \n Insert into t values (1)": "ms", "UPDATE t SET a = 1": "ms", "delete from t;": "ms", "merge into t": "ms",
		"with x as (select 1) insert into t select * from x": "s", "values (1)": "s", "table t": "s", "begin": "", "commit": "", "rollback": "", "start transaction": "",
	} {
		st, ok := Quick([]byte(sql))
		if got := flags(&st); !ok || got != want {
			t.Errorf("Quick(%q): %v with the flags %q, want %q", sql, ok, got, want)
		}
	}
}

func TestAtMostOne(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{"": true, "a": true, "a; \t\r\n\f;": true, "a;b": false, "';'": false, ";a": false, "a\x00": false, "a;\v": false} {
		if got := AtMostOne([]byte(sql)); got != want {
			t.Errorf("%q: %v, want %v", sql, got, want)
		}
	}
}

func TestDependence(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]Dependence{"": OnNothing, "select 'a'": OnNothing, "\xe4": OnEncoding, "select '\xe4'": OnEncoding, "select 'a\xe4'": OnEncoding, "select 'ab'\xe4": OnEncoding, "\xe4 '\\'": OnQuoting, "'\\' \xe4": OnQuoting, `'\'`: OnQuoting} {
		if got := DependenceOf([]byte(sql)); got != want {
			t.Errorf("%q: %v, want %v", sql, got, want)
		}
	}
}
