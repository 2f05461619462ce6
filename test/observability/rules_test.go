package observability

import (
	"log/slog"
	"os"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"go.yaml.in/yaml/v3"
)

const rulesFile = "../../etc/prometheus/fencepost.rules.yml"

// rules returns the rules, which must be valid.
func rules(t *testing.T) (all []rulefmt.Rule) {
	t.Helper()
	groups, errs := rulefmt.ParseFile(rulesFile, false, model.UTF8Validation, promql, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("there are no rules")
	}
	return all
}

func TestRulesNameWhatIsExported(t *testing.T) {
	t.Parallel()
	all := exported(t)
	for _, r := range rules(t) {
		for _, found := range mistakes(all, r.Expr) {
			t.Errorf("%s: %s", r.Alert, found)
		}
	}
}

// TestEachAlertIsTestedBothWays: rules_test.yml has a time at which it fires, and one at
// which it does not.
func TestEachAlertIsTestedBothWays(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("rules_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Tests []struct {
			Alerts []struct {
				Alert    string `yaml:"alertname"`
				Expected []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	fires, rests := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, a := range test.Alerts {
			fires[a.Alert] = fires[a.Alert] || len(a.Expected) > 0
			rests[a.Alert] = rests[a.Alert] || len(a.Expected) == 0
		}
	}
	for _, r := range rules(t) {
		if !fires[r.Alert] || !rests[r.Alert] {
			t.Errorf("%s: tested that it fires: %v, that it does not: %v", r.Alert, fires[r.Alert], rests[r.Alert])
		}
	}
}
