package proxy

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
)

func TestASCIIOnlyKeepsTheMeaningInsideJSON(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"plain", "", "ü", "日本", "😀 and \U0010ffff", "tab\tnew\nline", "\x00\x1f\x7f", "broken \xff utf8"} {
		got := asciiOnly(s)
		if i := strings.IndexFunc(got, func(r rune) bool { return r < 0x20 || r >= 0x7f }); i >= 0 {
			t.Errorf("asciiOnly(%q) = %q has byte %#x", s, got, got[i])
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
	st := &fencing.Status{Role: fencing.Superseded, Epoch: 3, Holder: fencing.Record{Epoch: 7, Worker: "wörker-ß\n"}}
	leading := &fencing.Status{Role: fencing.Leader, Epoch: 9, Holder: fencing.Record{Epoch: 9, Worker: "ü"}}
	for name, c := range map[string]struct {
		r     *fencing.Refusal
		state string
	}{
		"two phase":        {twoPhaseRefusal, "ZF005"},
		"replication":      {replicationRefusal, "ZF005"},
		"retry":            {retryRefusal, "ZF002"},
		"unfenced":         {unfencedRefusal("bénédicte"), "ZF002"},
		"missing resource": {missingResource("bénédicte"), "ZF002"},
		"superseded":       {supersededRefusal("rü", "wü", "inc", st), "ZF001"},
		"read-only":        {readOnlyRefusal("rü", "wü", "inc", st), "ZF002"},
		"start over":       {readOnlyRefusal("rü", "wü", "inc", leading), "ZF003"},
		"unchecked":        {uncheckedRefusal(wire.ServerError{Code: "42P01", Message: "Tabelle »fence« fehlt"}), "ZF004"},
		"fault":            {faultRefusal(errors.New("dial: größer\nals")), "ZF004"},
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
		if err := json.Unmarshal([]byte(r.Detail), &detail); err != nil {
			t.Errorf("%s: detail %q is no JSON: %v", name, r.Detail, err)
		}
		pe, ok := wire.DecodeError(appendError(nil, "FATAL", r)[wire.HeaderLen:])
		if !ok || !pe.Fatal() || pe.Code != r.SQLState || pe.Message != r.Message || pe.Detail != r.Detail || pe.Hint != r.Hint {
			t.Errorf("%s comes back as %+v", name, pe)
		}
	}
	own := &fencing.Refusal{SQLState: "ZF005", Message: "own"}
	if faultRefusal(own) != own {
		t.Error("a refusal was wrapped in another")
	}
}
