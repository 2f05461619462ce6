package pgtls

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestWrongFilesAreRefusedAtTheStart by an error that names them.
func TestWrongFilesAreRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	ca := pgtest.NewAuthority(t)
	one, two := ca.Issue(t, pgtest.Subject{Name: "one"}), ca.Issue(t, pgtest.Subject{Name: "two"})
	for name, c := range map[string]struct {
		cfg  ClientsConfig
		want string
	}{
		"no key":           {ClientsConfig{CertFile: one.CertFile}, "needs a certificate and its key"},
		"missing":          {ClientsConfig{CertFile: one.CertFile, KeyFile: one.KeyFile + "x"}, one.KeyFile + "x"},
		"another key":      {ClientsConfig{CertFile: one.CertFile, KeyFile: two.KeyFile}, "private key does not match"},
		"no authority":     {ClientsConfig{CertFile: one.CertFile, KeyFile: one.KeyFile, ClientCAFile: one.KeyFile}, "holds no certificate"},
		"nothing required": {ClientsConfig{CertFile: one.CertFile, KeyFile: one.KeyFile, ClientCAFile: ca.File, ClientCert: ClientCertVerifyCA}, "must use TLS"},
	} {
		if _, err := NewClients(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
