package system

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestTheAdminAddressUnderTLS: reading is open, a change needs the token or a certificate,
// and a reload replaces the token.
func TestTheAdminAddressUnderTLS(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	ca := pgtest.NewAuthority(t)
	own := ca.Issue(t, pgtest.Subject{Name: "fencepost", Hosts: []string{"localhost"}})
	operator := ca.Issue(t, pgtest.Subject{Name: "operator"})
	stranger := pgtest.NewAuthority(t).Issue(t, pgtest.Subject{Name: "operator"})
	token := filepath.Join(t.TempDir(), "token")
	secret := func(text string) {
		t.Helper()
		if err := os.WriteFile(token, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	secret("first-token")
	p, _ := h.configured("admin:\n  token_file: " + token + "\n  tls: {cert_file: " + own.CertFile + ", key_file: " + own.KeyFile + ", client_ca_file: " + ca.File + "}")
	_, port, _ := strings.Cut(p.Admin, ":")
	address := "https://localhost:" + port
	try := func(code int, want string, args ...string) {
		t.Helper()
		if got, out := h.command(args...); got != code || !strings.Contains(out, want) {
			t.Errorf("fencepost %v: code %d, %q; want %d and %q", args, got, out, code, want)
		}
	}
	try(0, "no resources yet", "status", "--admin", address, "--ca-file", ca.File)
	try(1, "certificate", "status", "--admin", address) // its authority is not the system's
	try(1, "401", "reload", "--admin", address, "--ca-file", ca.File)
	try(1, "certificate", "reload", "--admin", address, "--ca-file", ca.File, "--cert-file", stranger.CertFile, "--key-file", stranger.KeyFile)
	try(0, "no setting has changed", "reload", "--admin", address, "--ca-file", ca.File, "--cert-file", operator.CertFile, "--key-file", operator.KeyFile)
	withToken := []string{"reload", "--admin", address, "--ca-file", ca.File, "--token-file", token}
	try(0, "no setting has changed", withToken...)

	secret("second-token")
	try(1, "401", withToken...) // the proxy has not read it yet
	p.Signal(t, syscall.SIGHUP)
	p.Await(t, "setting changed", "setting", "admin.token", "old", "******", "new", "******")
	try(0, "no setting has changed", withToken...)
	for _, log := range []string{"first-token", "second-token"} {
		if strings.Contains(p.Log(), log) {
			t.Errorf("the log shows the token:\n%s", process.Tail(p.Log()))
		}
	}
}
