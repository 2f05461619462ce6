package fencing

import (
	"strings"
	"testing"
)

// TestRefusalsEndWithTheirState: the SQLSTATE is in the text, Postgres's too, unless Postgres
// itself would say the same there.
func TestRefusalsEndWithTheirState(t *testing.T) {
	t.Parallel()
	st := &Status{Holder: Record{Epoch: 2, Worker: "b"}}
	for _, r := range []*Refusal{TwoPhaseRefusal, ReplicationRefusal, UnfencedRefusal("u"),
		MissingResourceRefusal("u"), SupersededRefusal("r", "w", "i", st), ReadOnlyRefusal("r", "w", "i", st),
		SetRefusal("role"), SetRefusal("other"), TokenInTransactionRefusal, SetTokenRefusal("0", false), {SQLState: "22023", Message: "m"}} {
		if !strings.HasSuffix(r.Text(), " ["+r.SQLState+"]") || strings.Count(r.Text(), "["+r.SQLState+"]") != 1 {
			t.Errorf("text %q of %s", r.Text(), r.SQLState)
		}
	}
	if r := (&Refusal{SQLState: "53300", Message: "m", Verbatim: true}); r.Text() != "m" {
		t.Errorf("text %q", r.Text())
	}
}

// TestExplainedRefusals: the cause and what helps, in ASCII.
func TestExplainedRefusals(t *testing.T) {
	t.Parallel()
	plain := &Refusal{SQLState: StateNotLeader, Message: "m", Hint: "h."}
	s := RefusedWorker{Resource: "r\u00e9", Worker: "w", Status: &Status{}}
	if e := plain.WithCause(s); *e != *plain {
		t.Errorf("without a cause: %+v", e)
	}
	s.Trouble, s.Nameless = &Trouble{Problem: "p\u00e9"}, true
	if e := plain.WithCause(s); e.Message != `m; p\u00e9` || !strings.HasPrefix(e.Hint, "h. This connection named no fencepost.worker") {
		t.Errorf("a follower: %+v", e)
	}
	s.Trouble.Remedy, s.Status = "Do it.", &Status{Lapsed: true, Epoch: 3}
	e := plain.WithCause(s)
	if !strings.HasPrefix(e.Message, `the lease of "r\u00e9" is not confirmed: p\u00e9; worker "w" holds epoch 3`) || !strings.HasPrefix(e.Hint, "Waiting does not help. Do it.") {
		t.Errorf("a lapsed leader: %+v", e)
	}
	if other := (&Refusal{SQLState: StateNoFence, Message: "m"}); other.WithCause(s) != other {
		t.Error("another refusal was changed")
	}
}
