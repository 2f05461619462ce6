package config

import (
	"crypto/tls"

	"github.com/fencepost/fencepost/internal/files"
)

// TLSVersions are the values of min_version, as crypto/tls numbers them.
var TLSVersions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// TLS configures TLS for clients.
type TLS struct {
	Mode         string `yaml:"mode"` // "disable", "allow" or "require"
	CertFile     string `yaml:"cert_file"`
	KeyFile      string `yaml:"key_file"`
	ClientCAFile string `yaml:"client_ca_file"`
	ClientCert   string `yaml:"client_cert"` // "optional", "verify-ca" or "verify-full"
	MinVersion   string `yaml:"min_version"` // "1.2" or "1.3"
}

// UpstreamTLS configures TLS to Postgres, for workers' connections and for
// Fencepost's own.
type UpstreamTLS struct {
	Mode string `yaml:"mode"` // "disable", "require", "verify-ca" or "verify-full"
	files.TLSClient
	MinVersion string `yaml:"min_version"` // "1.2" or "1.3"
}

// noTLS is the mode that disables TLS, on either side.
const noTLS = "disable"

// Enabled reports whether clients are offered TLS.
func (c *TLS) Enabled() bool { return c.Mode != noTLS }

// Enabled reports whether the connections to Postgres use TLS.
func (c *UpstreamTLS) Enabled() bool { return c.Mode != noTLS }

func (c *TLS) validate(fault Fault) {
	checkWord(fault, "tls.mode", c.Mode, noTLS, "allow", "require")
	checkWord(fault, "tls.client_cert", c.ClientCert, "optional", "verify-ca", "verify-full")
	checkWord(fault, "tls.min_version", c.MinVersion, "1.2", "1.3")
	files := c.CertFile != "" || c.KeyFile != "" || c.ClientCAFile != ""
	asks := c.ClientCert == "verify-ca" || c.ClientCert == "verify-full"
	switch {
	case !c.Enabled() && (files || asks):
		fault("tls has settings, but tls.mode is disable: set mode: allow or mode: require, or remove them")
	case !c.Enabled():
	case c.CertFile == "" || c.KeyFile == "":
		fault("tls.mode is %s: set tls.cert_file and tls.key_file, the certificate for clients", c.Mode)
	case asks && c.ClientCAFile == "":
		fault("tls.client_cert is %s: set tls.client_ca_file, the authority of clients' certificates", c.ClientCert)
	case asks && c.Mode != "require":
		fault("tls.client_cert is %s, but tls.mode is %s: set mode: require, or clients without TLS need no certificate", c.ClientCert, c.Mode)
	}
}

func (c *UpstreamTLS) validate(fault Fault) {
	checkWord(fault, "upstream.tls.mode", c.Mode, noTLS, "require", "verify-ca", "verify-full")
	checkWord(fault, "upstream.tls.min_version", c.MinVersion, "1.2", "1.3")
	checkKeyPair(fault, "upstream.tls", c.CertFile, c.KeyFile)
	switch {
	case !c.Enabled() && c.IsSet():
		fault("upstream.tls has settings, but upstream.tls.mode is disable: set mode: verify-full, or remove them")
	case c.Mode == "require" && c.CAFile != "":
		fault("upstream.tls.mode require accepts any certificate, but ca_file is set: set mode: verify-ca or verify-full, or remove it")
	case c.Mode == "verify-ca" && c.CAFile == "":
		fault("upstream.tls.mode is verify-ca: set upstream.tls.ca_file, or any name under the system's authorities would be accepted")
	}
}

// checkKeyPair checks that there are both a certificate and its key, or neither.
func checkKeyPair(fault Fault, where, certFile, keyFile string) {
	if (certFile == "") != (keyFile == "") {
		fault("%s.cert_file and key_file belong together: set both or neither", where)
	}
}

// checkTLSClient checks the TLS settings of a lease service. TLS is used unless setting, whose value is given, is off.
func checkTLSClient(fault Fault, where string, c files.TLSClient, setting, value, off, on string) {
	checkKeyPair(fault, where, c.CertFile, c.KeyFile)
	if value == off && c.IsSet() {
		fault("%s has TLS settings, but %s is %s: set %s: %s, or remove them", where, setting, off, setting, on)
	}
}

// checkLogin checks who logs in to a lease service. needsUser says that a password alone is none of it.
func checkLogin(fault Fault, where string, l files.Login, needsUser bool) {
	password := l.Password != "" || l.PasswordFile != ""
	switch {
	case l.Password != "" && l.PasswordFile != "":
		fault("%s.password and password_file are both set: set one of them", where)
	case l.User == "" && password && needsUser:
		fault("%s has a password, but no user: set user too, or remove the password", where)
	case l.User != "" && !password:
		fault("%s.user is set, but no password: set password or password_file too, or remove user if a client certificate names it", where)
	}
}
