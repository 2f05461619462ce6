package files

import (
	"fmt"
	"strings"

	"go.uber.org/zap"
)

// Login is a user of a service, with its password.
type Login struct {
	User         string `yaml:"user"`
	Password     string `yaml:"password"`
	PasswordFile string `yaml:"password_file"` // if not "", what it contains is used instead of Password
}

// WatchPassword returns what reads the password, from the file again when that changes. setting is the setting that
// names the file.
func (l Login) WatchPassword(log *zap.Logger, setting string) (func() string, error) {
	path := l.PasswordFile
	if path == "" {
		return func() string { return l.Password }, nil
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
