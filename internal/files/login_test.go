package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
)

func TestPassword(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "password")
	for want, contents := range map[string]string{"no such file": "", "write the password into it": " \n"} {
		if contents != "" {
			write(t, path, contents)
		}
		if _, err := (Login{Password: "text", PasswordFile: path}).WatchPassword(zap.NewNop(), "the.setting"); err == nil || !strings.Contains(err.Error(), "the.setting: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("with %q: %v", contents, err)
		}
		_ = os.Remove(path)
	}
	write(t, path, "secret\n")
	for file, want := range map[string]string{"": "text", path: "secret"} {
		password, err := Login{Password: "text", PasswordFile: file}.WatchPassword(zap.NewNop(), "the.setting")
		if err != nil || password() != want {
			t.Errorf("the password of %q is %v", file, err)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
