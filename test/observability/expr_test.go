package observability

import (
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

var promql = parser.NewParser(parser.Options{})

// mistakes returns what is wrong with an expression: syntax, metrics that are not exported,
// labels that they do not have, and values of labels that no series has.
func mistakes(all series, text string) (found []string) {
	expr, err := promql.ParseExpr(text)
	if err != nil {
		return []string{err.Error()}
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			found = append(found, all.selector(n)...)
		case *parser.AggregateExpr:
			found = append(found, all.known(n, n.Grouping)...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				found = append(found, all.known(n, slices.Concat(n.VectorMatching.MatchingLabels, n.VectorMatching.Include))...)
			}
		}
		return nil
	})
	return found
}

// selector returns what is wrong with a selector.
func (s series) selector(n *parser.VectorSelector) (found []string) {
	exported, ok := s[n.Name]
	if !ok {
		return []string{fmt.Sprintf("the metric %s is not exported", n.Name)}
	}
	matches := func(one map[string]string) bool {
		return !slices.ContainsFunc(n.LabelMatchers, func(m *labels.Matcher) bool {
			return m.Name != labels.MetricName && !slices.Contains(addedByPrometheus, m.Name) && !m.Matches(one[m.Name])
		})
	}
	for _, m := range n.LabelMatchers {
		if _, has := exported[0][m.Name]; !has && m.Name != labels.MetricName && !slices.Contains(addedByPrometheus, m.Name) {
			found = append(found, fmt.Sprintf("%s has no label %s", n.Name, m.Name))
		}
	}
	if len(found) == 0 && !slices.ContainsFunc(exported, matches) {
		found = append(found, fmt.Sprintf("no series matches %s", n))
	}
	return found
}

// known returns which labels no metric in an expression has.
func (s series) known(node parser.Node, names []string) (found []string) {
	for _, name := range names {
		has := slices.Contains(addedByPrometheus, name)
		parser.Inspect(node, func(n parser.Node, _ []parser.Node) error {
			if v, ok := n.(*parser.VectorSelector); ok && len(s[v.Name]) > 0 {
				_, labelled := s[v.Name][0][name]
				has = has || labelled
			}
			return nil
		})
		if !has {
			found = append(found, fmt.Sprintf("nothing in %s has the label %s", node, name))
		}
	}
	return found
}

// TestMistakesAreFound: the test of the rules can fail.
func TestMistakesAreFound(t *testing.T) {
	t.Parallel()
	all := exported(t)
	for expr, ok := range map[string]bool{
		`fencepost_ready == 0`:                                                  true,
		`fencepost_redy == 0`:                                                   false,
		`fencepost_ready{`:                                                      false,
		`sum by (job, resource) (fencepost_epoch)`:                              true,
		`sum by (kind) (fencepost_epoch)`:                                       false,
		`fencepost_epoch / on (reason) fencepost_ready`:                         false,
		`fencepost_faults{kind="upstream"}`:                                     true,
		`fencepost_faults{kind="uptsream"}`:                                     false,
		`fencepost_faults{sort="upstream"}`:                                     false,
		`rate(fencepost_takeover_seconds_bucket{le="+Inf"}[5m])`:                true,
		`rate(fencepost_takeover_seconds[5m])`:                                  false,
		`fencepost_stale_writes_rejected_total{reason="ZF001",instance=~"x.*"}`: true,
	} {
		if found := mistakes(all, expr); (len(found) == 0) != ok {
			t.Errorf("%s: %q", expr, found)
		}
	}
}
