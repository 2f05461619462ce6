package files

import (
	"fmt"
	"strings"

	"go.uber.org/zap"
)

// Password returns what reads a password: text, or what the file at path contains, if path is not "". setting is the
// setting that names the file.
func Password(log *zap.Logger, setting, text, path string) (func() string, error) {
	if path == "" {
		return func() string { return text }, nil
	}
	build := func(contents [][]byte) (string, error) {
		password := strings.TrimSpace(string(contents[0]))
		if password == "" {
			return "", fmt.Errorf("%s: %s is empty: write the password into it", setting, path)
		}
		return password, nil
	}
	password, err := Watch(log, setting, build, path)
	if err != nil {
		return nil, err
	}
	return password.Get, nil
}
