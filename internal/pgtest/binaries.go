package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"
)

// Binaries returns the directory of the server binaries of one major version, for tests
// that use several versions. It searches FENCEPOST_TEST_PG<major>_BIN, then
// .cache/postgres/<major>/native/bin in the repository's root, then the directories of
// the system's packages. A missing version fails the test.
func Binaries(t testing.TB, major int) string {
	t.Helper()
	name := fmt.Sprintf("FENCEPOST_TEST_PG%d_BIN", major)
	if dir := os.Getenv(name); dir != "" {
		if !hasServer(dir) {
			t.Fatalf("%s=%s does not contain initdb and postgres", name, dir)
		}
		return dir
	}
	if root, err := RepositoryRoot(); err == nil {
		pattern := filepath.Join(root, ".cache", "postgres", strconv.Itoa(major)+"*", "native", "bin")
		if dirs := serversIn(pattern); len(dirs) > 0 {
			return dirs[0]
		}
	}
	for _, dir := range serversIn("/usr/lib/postgresql/*/bin") {
		if majorOf(dir) == major {
			return dir
		}
	}
	t.Fatalf("PostgreSQL %d not found: run `make postgres-versions`, or set %s to the directory of its initdb and postgres", major, name)
	return ""
}

// defaultBinaries finds the server that tests use by default.
func defaultBinaries() (string, error) {
	if dir := os.Getenv("FENCEPOST_TEST_PG_BIN"); dir != "" {
		if !hasServer(dir) {
			return "", fmt.Errorf("FENCEPOST_TEST_PG_BIN=%s does not contain initdb and postgres", dir)
		}
		return dir, nil
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		if dir := strings.TrimSpace(string(out)); hasServer(dir) {
			return dir, nil
		}
	}
	if dirs := serversIn("/usr/lib/postgresql/*/bin"); len(dirs) > 0 {
		return dirs[0], nil
	}
	return "", fmt.Errorf("no PostgreSQL server found: install the package postgresql, or set FENCEPOST_TEST_PG_BIN to the directory of initdb and postgres")
}

// serversIn lists the directories that match pattern and contain a server, newest
// version first.
func serversIn(pattern string) []string {
	matches, err := filepath.Glob(pattern)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, dir := range matches {
		if hasServer(dir) {
			dirs = append(dirs, dir)
		}
	}
	sort.SliceStable(dirs, func(i, j int) bool { return majorOf(dirs[i]) > majorOf(dirs[j]) })
	return dirs
}

func hasServer(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

var versionText = regexp.MustCompile(`PostgreSQL\) (\d+)`)

// majorOf returns the major version of the server in dir, 0 if it cannot be determined.
func majorOf(dir string) int {
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0
	}
	found := versionText.FindSubmatch(out)
	if found == nil {
		return 0
	}
	major, err := strconv.Atoi(string(found[1]))
	if err != nil {
		return 0
	}
	return major
}

// RepositoryRoot returns the directory above the working directory whose go.mod is that of
// Fencepost. Some tests are modules of their own.
func RepositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("read the working directory: %w", err)
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/fencepost/fencepost\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no go.mod of Fencepost above the working directory")
		}
		dir = parent
	}
}

// WithTools uses a server that includes pg_dump and psql: the default one, or the
// newest of the system's packages. It fails the test if there is none.
func WithTools(t testing.TB) Option {
	t.Helper()
	dirs := serversIn("/usr/lib/postgresql/*/bin")
	if dir, err := defaultBinaries(); err == nil {
		dirs = append([]string{dir}, dirs...)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "pg_dump")); err == nil {
			return WithBinaries(dir)
		}
	}
	t.Fatalf("no PostgreSQL server with pg_dump found: install the package postgresql")
	return nil
}
