package fencing

import "testing"

// The words are a contract: alerts and log readers select by them.
func TestOnlyStaleWritesAreCalledStale(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		resource, state string
		label           string
		write, read     string
	}{
		{"paused", "ZF001", "ordered", "write refused: an operator's order has ended the lead of its worker", "read refused: an operator's order has ended the lead of its worker"},
		{"r", "ZF001", "stale", "stale write rejected", "stale read rejected"},
		{"r", "ZF003", "start_over", "write refused: its connection did not know that the worker leads", "read refused: its connection did not know that the worker leads"},
		{"r", "ZF002", "not_leader", "write refused: not the leader", "read refused: not the leader"},
		{"r", "ZF005", "unfenceable", "write refused: cannot be fenced", "read refused: cannot be fenced"},
		{"r", "ZF004", "unchecked", "write refused: the fence cannot be checked", "read refused: the fence cannot be checked"},
		{"", "ZF002", "unfenced", "write refused: unfenced", "read refused: unfenced"},
		{"", "ZF005", "unfenced", "write refused: unfenced", "read refused: unfenced"},
	} {
		found := Finding{Epoch: 7, Current: 8}
		if c.resource != "paused" {
			found.Holder = "other"
		}
		kind := KindOf(c.resource, c.state, found)
		if kind.String() != c.label || kind.Summary(true) != c.write || kind.Summary(false) != c.read {
			t.Errorf("%s on resource %q: %s, %q, %q; want %+v", c.state, c.resource, kind, kind.Summary(true), kind.Summary(false), c)
		}
	}
}

func TestFindingIsReadOnlyFromTheCheck(t *testing.T) {
	t.Parallel()
	st := &Status{Epoch: 3, Holder: Record{Epoch: 7, Worker: "wörker"}}
	for name, c := range map[string]struct {
		detail string
		want   Finding
		ok     bool
	}{
		"of the database":  {`{"resource":"r","worker":"a","incarnation":"i","epoch":3,"current_epoch":7,"current_worker":"b"}`, Finding{3, 7, "b", "r"}, true},
		"without a holder": {`{"resource":"r","worker":null,"incarnation":"i","epoch":0,"current_epoch":7,"current_worker":null}`, Finding{0, 7, "", "r"}, true},
		"of the proxy":     {SupersededRefusal("r", "a", "i", st).Detail, Finding{3, 7, "wörker", "r"}, true},
		"nothing":          {"", Finding{}, false},
		"of a refusal":     {TwoPhaseRefusal.Detail, Finding{}, false},
		"of a conflict":    {"Reason code: Canceled on identification as a pivot.", Finding{}, false},
	} {
		got, ok := DecodeFinding(c.detail)
		if got != c.want || ok != c.ok {
			t.Errorf("%s: %+v, %t; want %+v, %t", name, got, ok, c.want, c.ok)
		}
	}
}
