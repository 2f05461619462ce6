package observability

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// panel is what a panel of a board has that matters here.
type panel struct {
	Title   string
	Targets []struct{ Expr string }
	Panels  []panel // of a row
}

var (
	variable    = regexp.MustCompile(`\$\{?(\w+)\}?`)
	labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
)

// plain replaces the variables of a board in an expression.
func plain(expr string) string {
	return variable.ReplaceAllStringFunc(expr, func(v string) string {
		if strings.HasPrefix(v, "$__") {
			return "5m"
		}
		return ".*"
	})
}

func TestBoardShowsWhatIsExported(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../etc/grafana/fencepost.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels     []panel
		Templating struct {
			List []struct {
				Name, Type, Definition string
			}
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	all, shown, defined := exported(t), "", map[string]bool{}
	for _, v := range board.Templating.List {
		defined[v.Name] = true
		if v.Type != "query" {
			continue
		}
		parts := labelValues.FindStringSubmatch(v.Definition)
		if parts == nil {
			t.Errorf("variable %s: %s is no label_values(...)", v.Name, v.Definition)
			continue
		}
		for _, found := range mistakes(all, "count by ("+parts[2]+") ("+plain(parts[1])+")") {
			t.Errorf("variable %s: %s", v.Name, found)
		}
	}
	panels := board.Panels
	for i := 0; i < len(panels); i++ {
		panels = append(panels, panels[i].Panels...)
		for _, target := range panels[i].Targets {
			shown += target.Expr
			for _, found := range mistakes(all, plain(target.Expr)) {
				t.Errorf("panel %q: %s", panels[i].Title, found)
			}
			for _, v := range variable.FindAllStringSubmatch(target.Expr, -1) {
				if !strings.HasPrefix(v[1], "__") && !defined[v[1]] {
					t.Errorf("panel %q: the variable %s is not defined", panels[i].Title, v[1])
				}
			}
		}
	}
	for name := range all {
		if base := strings.TrimSuffix(strings.TrimSuffix(name, "_sum"), "_count"); ours(name) && base == name && !strings.Contains(shown, name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}
