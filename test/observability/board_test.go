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

// board is the Grafana board.
type board struct {
	Panels     []panel
	Templating struct {
		List []struct {
			Name, Type, Definition string
		}
	}
}

func readBoard(t *testing.T) (b board) {
	t.Helper()
	text, err := os.ReadFile("../../etc/grafana/fencepost.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// panels returns the panels of all rows.
func (b board) panels() []panel {
	all := b.Panels
	for i := 0; i < len(all); i++ {
		all = append(all, all[i].Panels...)
	}
	return all
}

// query is one query of the board, as Prometheus gets it.
type query struct {
	name string // of the panel or the variable
	expr string
}

// queries returns all queries of the board. One for the values of a variable is asked here
// for its series.
func queries(t *testing.T) (all []query) {
	t.Helper()
	b := readBoard(t)
	for _, v := range b.Templating.List {
		if v.Type != "query" {
			continue
		}
		parts := labelValues.FindStringSubmatch(v.Definition)
		if parts == nil {
			t.Fatalf("variable %s: %s is no label_values(...)", v.Name, v.Definition)
		}
		all = append(all, query{"variable " + v.Name, "count by (" + parts[2] + ") (" + plain(parts[1]) + ")"})
	}
	for _, p := range b.panels() {
		for _, target := range p.Targets {
			all = append(all, query{p.Title, plain(target.Expr)})
		}
	}
	return all
}

func TestBoardShowsWhatIsExported(t *testing.T) {
	t.Parallel()
	all, shown := exported(t), ""
	for _, q := range queries(t) {
		if !strings.HasPrefix(q.name, "variable ") {
			shown += q.expr
		}
		for _, found := range mistakes(all, q.expr) {
			t.Errorf("%s: %s", q.name, found)
		}
	}
	for name := range all {
		if base := strings.TrimSuffix(strings.TrimSuffix(name, "_sum"), "_count"); ours(name) && base == name && !strings.Contains(shown, name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}

func TestBoardDefinesItsVariables(t *testing.T) {
	t.Parallel()
	b, defined := readBoard(t), map[string]bool{}
	for _, v := range b.Templating.List {
		defined[v.Name] = true
	}
	for _, p := range b.panels() {
		for _, target := range p.Targets {
			for _, v := range variable.FindAllStringSubmatch(target.Expr, -1) {
				if !strings.HasPrefix(v[1], "__") && !defined[v[1]] {
					t.Errorf("panel %q: the variable %s is not defined", p.Title, v[1])
				}
			}
		}
	}
}
