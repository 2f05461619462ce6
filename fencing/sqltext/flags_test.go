package sqltext

import "testing"

// TestAccessMode checks what BEGIN and SET do to the access mode of the transaction (w: READ WRITE) and of the
// session's default (+ on, - off, = as at the start), and which statements call what read-only mode does not stop (e).
func TestAccessMode(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"begin": "", "begin read write": "w", "start transaction isolation level serializable, read write": "w", "begin read only": "", "begin read only, read write": "w", "begin isolation level serializable": "",
		"set transaction read write": "w", "set transaction read only": "", "set transaction isolation level serializable": "", "set local transaction_read_only = off": "w", "set transaction_read_only = on": "w", "reset transaction_read_only": "w",
		"set session characteristics as transaction read write": "-", "set session characteristics as transaction read only": "+", "set session characteristics as transaction isolation level serializable": "",
		"set default_transaction_read_only = off": "-", "set Default_Transaction_Read_Only to on": "+", "set default_transaction_read_only to 'x'": "+", "set default_transaction_read_only to default": "=", "reset default_transaction_read_only": "=", "set local default_transaction_read_only = on": "", "reset all": "",
		"select pg_notify('a', 'b')": "e", "insert into t values (pg_notify('a', 'b'))": "e", "execute p(pg_notify('a', 'b'))": "e", "insert into t values (nextval('s'))": "", "execute p(1)": "", "select set_config('transaction_read_only', 'off', true)": "e",
	} {
		got := ""
		for _, st := range Analyze(sql, DefaultSettings).Statements {
			if st.ChoosesReadWrite {
				got += "w"
			}
			got += map[DefaultChange]string{KeepsDefault: "", SetsReadOnly: "+", SetsReadWrite: "-", RestoresDefault: "="}[st.DefaultReadOnly]
			if st.Evades {
				got += "e"
			}
		}
		if got != want {
			t.Errorf("%q: %q, want %q", sql, got, want)
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
