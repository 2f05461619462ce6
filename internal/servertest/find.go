package servertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// find returns the path of a server program: what the environment variable says, the
// program of that name in PATH, or the one that the target of make built into .cache at the root of this module.
func find(variable, name, target string) (string, error) {
	if path := os.Getenv(variable); path != "" {
		return path, nil
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
			continue
		}
		path := filepath.Join(dir, ".cache", name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path, nil
		}
	}
	return "", fmt.Errorf(`no %s found for tests: run "make %s", add it to PATH, or set %s`, name, target, variable)
}
