package config

import (
	"fmt"
	"os"
	"strings"
)

// Admin configures the admin address.
type Admin struct {
	Address string `yaml:"address"` // "" disables it
	// OpenReads lets everyone read who reaches the address. Requests that change something
	// always need the token or a client certificate, or come from the host itself.
	OpenReads bool     `yaml:"open_reads"`
	Token     string   `yaml:"token"`
	TokenFile string   `yaml:"token_file"`
	TLS       AdminTLS `yaml:"tls"`
}

// AdminTLS configures TLS on the admin address. Without files there is none.
type AdminTLS struct {
	CertFile     string `yaml:"cert_file"`
	KeyFile      string `yaml:"key_file"`
	ClientCAFile string `yaml:"client_ca_file"`
}

// Enabled reports whether the admin address is under TLS.
func (c *AdminTLS) Enabled() bool { return c.CertFile != "" }

// ReadToken sets Token to the contents of TokenFile, if that is configured.
func (c *Admin) ReadToken() error {
	if c.TokenFile == "" {
		return nil
	}
	text, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return fmt.Errorf("admin.token_file: %w", err)
	}
	if c.Token = strings.TrimSpace(string(text)); c.Token == "" {
		return fmt.Errorf("admin.token_file: %s is empty: write the token into it", c.TokenFile)
	}
	return nil
}

func (c *Admin) validate(fault Fault) {
	if c.Address != "" {
		checkAddress(fault, "admin.address", c.Address)
	}
	if c.Token != "" && c.TokenFile != "" {
		fault("admin.token and admin.token_file are both set: set one of them")
	}
	checkKeyPair(fault, "admin.tls", c.TLS.CertFile, c.TLS.KeyFile)
	if c.TLS.ClientCAFile != "" && !c.TLS.Enabled() {
		fault("admin.tls.client_ca_file is set, but the admin address has no TLS: set admin.tls.cert_file and key_file too")
	}
}
