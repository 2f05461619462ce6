package sqltext

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write what the code says into testdata/classify, to be read before it is committed")

// textCase is one entry of testdata/classify: comment lines that begin with #, a text,
// a line of four dashes, and the expected result, up to an empty line.
type textCase struct {
	file    string
	line    int
	comment []string
	sql     string
	want    string
}

// readCases returns the cases of one file in order.
func readCases(t testing.TB, file string) []*textCase {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cases []*textCase
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		if lines[i] == "" {
			continue
		}
		c := &textCase{file: file, line: i + 1}
		for ; i < len(lines) && strings.HasPrefix(lines[i], "#"); i++ {
			c.comment = append(c.comment, lines[i])
		}
		start := i
		for i < len(lines) && lines[i] != "----" {
			i++
		}
		c.sql = strings.Join(lines[start:min(i, len(lines))], "\n")
		start = i + 1
		for i++; i < len(lines) && lines[i] != ""; i++ {
		}
		if start < len(lines) {
			c.want = strings.Join(lines[start:min(i, len(lines))], "\n")
		}
		cases = append(cases, c)
	}
	return cases
}

func writeCases(t *testing.T, file string, cases []*textCase) {
	t.Helper()
	var b strings.Builder
	for i, c := range cases {
		if i > 0 {
			b.WriteString("\n")
		}
		for _, l := range c.comment {
			b.WriteString(l + "\n")
		}
		b.WriteString(c.sql + "\n----\n" + c.want + "\n")
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// describe describes t, one line per statement.
func describe(sql string, t *Text) string {
	var b strings.Builder
	if !t.Known {
		b.WriteString("not known: " + t.why + "\n")
	}
	if len(t.Statements) > 1 {
		fmt.Fprintf(&b, "%d statements\n", len(t.Statements))
	}
	if len(t.Statements) == 0 && t.Known {
		b.WriteString("nothing\n")
	}
	for i := range t.Statements {
		st := &t.Statements[i]
		b.WriteString(describeStatement(st))
		if st.reason != "" && !st.Read {
			b.WriteString(" | " + st.reason)
		}
		if len(t.Statements) > 1 {
			fmt.Fprintf(&b, " | %q", sql[st.Start:st.End])
		}
		b.WriteString("\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

var effectWords = []struct {
	effect Effect
	word   string
}{
	{Chains, "chain"}, {UnsetsReadOnly, "unsets-read-only"}, {UsesSavepoint, "savepoint"}, {EndsTransaction, "ends-tx"}, {MayEndTransaction, "may-end-tx"},
	{ChoosesReadWrite, "read-write"}, {SetsDefaultReadOnly, "default-read-only"}, {SetsDefaultReadWrite, "default-read-write"}, {RestoresDefault, "restores-default"},
	{ResetsAll, "resets-all"}, {SetsLocally, "local"}, {SetsCurrent, "current"}, {SetsConfig, "sets-config"}, {EvadesReadOnly, "evades"},
	{ReadsSince16, "reads-since-16"}, {Prepares, "prepares"}, {Executes, "executes"},
}

func describeStatement(st *Statement) string {
	words := []string{st.Kind.String()}
	if st.Read {
		words = append(words, "read")
	}
	unnamed := st.effects
	for _, w := range effectWords {
		if st.Does(w.effect) {
			words = append(words, w.word)
		}
		unnamed &^= w.effect
	}
	if unnamed != 0 {
		words = append(words, fmt.Sprintf("effect %b, which has no word", unnamed))
	}
	if st.Name != "" {
		words = append(words, "name="+st.Name)
	}
	if st.Kind == SetFence {
		words = append(words, fmt.Sprintf("value=%q", st.Value))
	}
	return strings.Join(words, " ")
}

func dataFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/classify/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in testdata/classify (%v)", err)
	}
	return files
}

func TestClassify(t *testing.T) {
	t.Parallel()
	total := 0
	for _, file := range dataFiles(t) {
		cases := readCases(t, file)
		total += len(cases)
		for _, c := range cases {
			got := describe(c.sql, Analyze(c.sql, DefaultSettings))
			if *rewrite {
				c.want = got
			}
			if got != c.want {
				t.Errorf("%s:%d: %s\ngot:\n%s\nwant:\n%s", c.file, c.line, c.sql, got, c.want)
			}
		}
		if *rewrite {
			writeCases(t, file, cases)
		}
	}
	if total < 250 {
		t.Errorf("only %d texts in testdata/classify, want at least 250", total)
	}
}
