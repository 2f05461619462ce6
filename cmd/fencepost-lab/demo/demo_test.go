package demo

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestJudge(t *testing.T) {
	t.Parallel()
	good := [2]result{{invoices: 8, chargedTwice: 1}, {invoices: 8, refused: 1}}
	if err := judge(good[0], good[1]); err != nil {
		t.Errorf("the expected result was rejected: %v", err)
	}
	for name, c := range map[string]struct {
		unfenced, fenced result
		want             string
	}{
		"the fence leaked":         {good[0], result{invoices: 8, chargedTwice: 1, refused: 1}, "despite the fence"},
		"nothing was refused":      {good[0], result{invoices: 8}, "refused nothing"},
		"the problem did not show": {result{invoices: 8}, good[1], "did not show the problem"},
		"invoices are missing":     {good[0], result{invoices: 7, refused: 1}, "8 and 7 invoices|7 and 8 invoices"},
		"there were no invoices":   {result{chargedTwice: 1}, result{refused: 1}, "0 and 0 invoices"},
	} {
		err := judge(c.unfenced, c.fenced)
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		var found bool
		for _, want := range strings.Split(c.want, "|") {
			found = found || strings.Contains(err.Error(), want)
		}
		if !found {
			t.Errorf("%s: error %v does not contain %q", name, err, c.want)
		}
	}
}
