package fencing

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestASCIIOnlyKeepsTheMeaningInsideJSON(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"plain", "", "ü", "日本", "😀 and \U0010ffff", "tab\tnew\nline", "\x00\x1f\x7f", "broken \xff utf8"} {
		got := ASCII(s)
		if i := strings.IndexFunc(got, func(r rune) bool { return r < 0x20 || r >= 0x7f }); i >= 0 {
			t.Errorf("ASCII(%q) = %q has byte %#x", s, got, got[i])
		}
		var back string
		if err := json.Unmarshal([]byte(`"`+got+`"`), &back); err != nil {
			t.Errorf("%q inside a JSON string: %v", got, err)
		} else if want := strings.ToValidUTF8(s, "\ufffd"); back != want {
			t.Errorf("%q comes back as %q", want, back)
		}
	}
}

func TestEveryRefusalCanReachEveryClient(t *testing.T) {
	t.Parallel()
	st := &Status{Role: Superseded, Epoch: 3, Holder: Record{Epoch: 7, Worker: "wörker-ß\n"}}
	leading := &Status{Role: Leader, Epoch: 9, Holder: Record{Epoch: 9, Worker: "ü"}}
	for name, c := range map[string]struct {
		r     *Refusal
		state string
	}{
		"two phase":        {TwoPhaseRefusal, "ZF005"},
		"replication":      {ReplicationRefusal, "ZF005"},
		"set role":         {SetRefusal("role"), "55P02"},
		"set resource":     {SetRefusal("resource"), "55P02"},
		"set heartbeat":    {SetRefusal("heartbeat"), "55P02"},
		"set another":      {SetRefusal("r\u00f4le"), "42704"},
		"unfenced":         {UnfencedRefusal("bénédicte"), "ZF002"},
		"missing resource": {MissingResourceRefusal("bénédicte"), "ZF002"},
		"superseded":       {SupersededRefusal("rü", "wü", "inc", st), "ZF001"},
		"removed":          {SupersededRefusal("rü", "wü", "inc", &Status{Role: Superseded, Removed: true}), "ZF004"},
		"removed, led":     {SupersededRefusal("rü", "wü", "inc", &Status{Role: Superseded, Removed: true, Epoch: 3}), "ZF001"},
		"read-only":        {ReadOnlyRefusal("rü", "wü", "inc", st), "ZF002"},
		"start over":       {ReadOnlyRefusal("rü", "wü", "inc", leading), "ZF003"},
		"fault":            {FaultRefusal(errors.New("dial: größer\nals")), "ZF004"},
		"old awards":       {OldAwardsRefusal("shop", errors.New("größer")), "ZF004"},
		"unproven read":    {&Refusal{SQLState: StateNotLeader, Message: "m", Hint: UnprovenHint("größer", "Ask.")}, "ZF002"},
		"startup fault":    {StartupRefusal(errors.New("dial: größer\nals")), "ZF004"},
		"restart":          {StartupRefusal(fmt.Errorf("look: %w", stated("57P01"))), "57P01"},
		"starting up":      {StartupRefusal(stated("57P03")), "57P03"},
		"missing schema":   {StartupRefusal(stated("42P01")), "ZF004"},
	} {
		r := c.r
		if r.SQLState != c.state || r.Message == "" || r.Hint == "" {
			t.Errorf("%s: %+v, want %s with a message and a hint", name, r, c.state)
		}
		for _, s := range []string{r.Message, r.Detail, r.Hint} {
			if i := strings.IndexFunc(s, func(r rune) bool { return r < 0x20 || r >= 0x7f }); i >= 0 {
				t.Errorf("%s: %q is not one line of ASCII", name, s)
			}
		}
		var detail map[string]any
		if err := json.Unmarshal([]byte(r.Detail), &detail); r.Detail != "" && err != nil {
			t.Errorf("%s: detail %q is not JSON: %v", name, r.Detail, err)
		}
	}
	own := &Refusal{SQLState: "ZF005", Message: "own"}
	if FaultRefusal(own) != own || StartupRefusal(own) != own {
		t.Error("a refusal was wrapped in another")
	}
}

// stated is an error of Postgres with this SQLSTATE.
type stated string

func (s stated) Error() string    { return "Postgres says " + string(s) }
func (s stated) SQLState() string { return string(s) }
