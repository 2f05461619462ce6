package redis

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"

	"github.com/fencepost/fencepost/internal/files"
)

// tlsOf returns what makes the configuration of TLS from its files.
func tlsOf(cfg Config) (*files.Watched[*tls.Config], error) {
	name := cfg.ServerName
	if name == "" {
		host, _, err := net.SplitHostPort(cfg.Address)
		if err != nil {
			return nil, fmt.Errorf("election.redis.address: %w", err)
		}
		name = host
	}
	build := func(contents [][]byte) (*tls.Config, error) {
		c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name}
		if cfg.CAFile != "" {
			roots, err := files.Authorities(cfg.CAFile, contents[0])
			if err != nil {
				return nil, err
			}
			c.RootCAs = roots
		}
		if cfg.CertFile != "" {
			pair, err := files.KeyPair(cfg.CertFile, cfg.KeyFile, contents[1], contents[2])
			if err != nil {
				return nil, err
			}
			c.Certificates = []tls.Certificate{pair}
		}
		return c, nil
	}
	config, err := files.Watch(cfg.Logger, "TLS files of Redis", build, cfg.CAFile, cfg.CertFile, cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("ca_file, cert_file or key_file: %w", err)
	}
	return config, nil
}

// passwordOf returns what reads the password.
func passwordOf(cfg Config) (func() string, error) {
	if cfg.PasswordFile == "" {
		return func() string { return cfg.Password }, nil
	}
	build := func(contents [][]byte) (string, error) {
		password := strings.TrimSpace(string(contents[0]))
		if password == "" {
			return "", fmt.Errorf("%s is empty: write the password into it", cfg.PasswordFile)
		}
		return password, nil
	}
	password, err := files.Watch(cfg.Logger, "password_file of Redis", build, cfg.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("election.redis.password_file: %w", err)
	}
	return password.Get, nil
}
