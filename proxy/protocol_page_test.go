package proxy_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

var (
	testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`)
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
)

// TestProtocolPageNamesTestsThatExist: each row of the page's tables names a test
// that is there, or says that there is nothing to do.
func TestProtocolPageNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
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
	page, err := os.ReadFile(protocolDoc)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(page), docBegin)
	rows := 0
	for line := range strings.Lines(head) {
		names := testName.FindAllString(line, -1)
		for _, name := range names {
			if !there[name] && strings.HasPrefix(line, "| ") {
				t.Errorf("%s names %s, which is no test", protocolDoc, name)
			}
		}
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| id ") {
			continue
		}
		if rows++; len(names) == 0 && !strings.Contains(line, "nothing to do") {
			t.Errorf("a row without a test: %s", line)
		}
	}
	if rows < 90 {
		t.Errorf("%s has %d rows, want one for each trap", protocolDoc, rows)
	}
}

// TestProtocolStartupParameters: what a client asks for in its startup reaches
// the server as it was said.
func TestProtocolStartupParameters(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, b *bench, db string) {
		own := []string{"fencepost.resource", "r", "fencepost.worker", "w"}
		for name, params := range map[string][]string{
			"nothing": nil, "an empty name": {"application_name", ""}, "a name outside ascii": {"application_name", "né"},
			"settings":  {"datestyle", "German", "TimeZone", "Asia/Tokyo", "search_path", "a, b", "statement_timeout", "5s"},
			"encodings": {"client_encoding", "LATIN1"}, "an encoding by another name": {"client_encoding", "'utf-8'"},
			"options": {"options", `-c work_mem=5MB --search-path=a,\ b -c application_name=back\\slash`}, "options of nothing": {"options", "  "},
			"options in front of fencepost's": {"options", `-c DateStyle=SQL`, "application_name", "later"}, "a setting twice": {"application_name", "one", "application_name", "two"},
		} {
			params = append([]string{"user", pgtest.App, "database", db}, params...)
			direct, said := wiretest.Connect(t, b.pg.Addr(), params...)
			c, got := wiretest.Connect(t, b.addr, append(params, own...)...)
			if want := greeting(said); !slices.Equal(want, greeting(got)) {
				t.Errorf("%s: Postgres says %v, Fencepost %v", name, want, greeting(got))
			}
			const sql = "select string_agg(name || '=' || setting, ' ' order by name) from pg_settings where source in ('client', 'session') and name not like 'fencepost.%' and name <> 'transaction_read_only'"
			if want, got := value(t, direct.Exec(sql)), value(t, c.Exec(sql)); want != got {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
			_, _ = direct.Close(), c.Close()
		}
	})
}
