package protocol

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

var (
	testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`)
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
)

// allTests are the names of all tests in the repository.
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	there := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != "..":
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return there
}

// rowsNameTests fails t unless each row of a page's tables names a test that is
// there, or says that there is nothing to do. It returns how many rows there are.
func rowsNameTests(t *testing.T, name, page string) (rows int) {
	t.Helper()
	there := allTests(t)
	for line := range strings.Lines(page) {
		names := testName.FindAllString(line, -1)
		for _, test := range names {
			if !there[test] && strings.HasPrefix(line, "| ") {
				t.Errorf("%s names %s, which is no test", name, test)
			}
		}
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| id ") || strings.HasPrefix(line, "| what was tried ") {
			continue
		}
		if rows++; len(names) == 0 && !strings.Contains(line, "nothing to do") {
			t.Errorf("a row without a test: %s", line)
		}
	}
	return rows
}

// protocolRows is the text of the pages that list what may go wrong between client and server, each row with an id.
func protocolRows(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, name := range []string{"protocol.md", "stale-writes.md", "differences.md"} {
		page, err := os.ReadFile("../../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(page)
	}
	return all.String()
}

// TestProtocolPagesNameTestsThatExist holds the pages about the protocol to their tests.
func TestProtocolPagesNameTestsThatExist(t *testing.T) {
	t.Parallel()
	if rows := rowsNameTests(t, "a page about the protocol", protocolRows(t)); rows < 80 {
		t.Errorf("the pages have %d rows, want one for each trap", rows)
	}
}

// TestAttacksPageNamesTestsThatExist holds docs/attacks.md to the tests that run the attacks.
func TestAttacksPageNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	const doc = "../../docs/attacks.md"
	page, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	if rows := rowsNameTests(t, doc, string(page)); rows < 40 {
		t.Errorf("%s has %d attacks, want one row for each", doc, rows)
	}
}

// TestProtocolStartupParameters: what a client asks for in its startup reaches
// the server as it was said.
func TestProtocolStartupParameters(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		own := []string{"fencepost.resource", "r", "fencepost.worker", "w"}
		for name, params := range map[string][]string{
			"nothing": nil, "an empty name": {"application_name", ""}, "a name outside ascii": {"application_name", "né"},
			"settings":  {"datestyle", "German", "TimeZone", "Asia/Tokyo", "search_path", "a, b", "statement_timeout", "5s"},
			"encodings": {"client_encoding", "LATIN1"}, "an encoding by another name": {"client_encoding", "'utf-8'"},
			"options": {"options", `-c work_mem=5MB --search-path=a,\ b -c application_name=back\\slash`}, "options of nothing": {"options", "  "},
			"options in front of fencepost's": {"options", `-c DateStyle=SQL`, "application_name", "later"}, "a setting twice": {"application_name", "one", "application_name", "two"},
		} {
			params = append([]string{"user", pgtest.App, "database", db}, params...)
			direct, said := wiretest.Connect(t, p.PG.Addr(), params...)
			c, got := wiretest.Connect(t, p.Addr, append(params, own...)...)
			if want := fixture.Greeting(said); !slices.Equal(want, fixture.Greeting(got)) {
				t.Errorf("%s: Postgres says %v, Fencepost %v", name, want, fixture.Greeting(got))
			}
			const sql = "select string_agg(name || '=' || setting, ' ' order by name) from pg_settings where source in ('client', 'session') and name not like 'fencepost.%' and name not like '%transaction_read_only'"
			if want, got := fixture.FirstValue(t, direct.Exec(sql)), fixture.FirstValue(t, c.Exec(sql)); want != got {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
			_, _ = direct.Close(), c.Close()
		}
	})
}
