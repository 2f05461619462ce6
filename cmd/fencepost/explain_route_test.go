package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheDocumentedRouteIsExplained runs the example of docs/routes.md.
func TestTheDocumentedRouteIsExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "routes.md"))
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```yaml\n(.*?)```.*?```\n\\$ fencepost (explain-route [^\n]*)\n(.*?)```").FindStringSubmatch(string(text))
	if example == nil {
		t.Fatal("docs/routes.md has no example of explain-route")
	}
	path := filepath.Join(t.TempDir(), "fencepost.yml")
	if err := os.WriteFile(path, []byte(example[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	args := strings.Fields(strings.Replace(example[2], "fencepost.yml", path, 1))
	if out := runCommand(t, nil, args...); out.code != exitOK || out.stdout != example[3] {
		t.Errorf("exit code %d, %s\n%s\nwant\n%s", out.code, out.stderr, out.stdout, example[3])
	}
	for _, c := range []struct {
		change []string
		code   int
		want   string
	}{
		{[]string{"--client", "local"}, exitOK, "client is local, not 10.0.3.0/24"},
		{[]string{"--database", ""}, exitUsage, "--database is empty"},
		{[]string{"--user", "report_1", "--client", "local"}, exitOK, "campaign  off"},
		{[]string{"--client", "here"}, exitUsage, "give an IP address, or local"},
		{[]string{"--config", filepath.Join("..", "..", "etc", "nothing.yml")}, exitUsage, "nothing.yml"},
	} {
		out := runCommand(t, nil, append(args, c.change...)...)
		if out.code != c.code || !strings.Contains(out.stdout+out.stderr, c.want) {
			t.Errorf("%v: exit code %d, want %d and %q:\n%s%s", c.change, out.code, c.code, c.want, out.stdout, out.stderr)
		}
	}
	if out := runCommand(t, nil, "explain-route", "--user", "app", "--config", path); out.code != exitUsage {
		t.Errorf("without a client: %+v", out)
	}
}
