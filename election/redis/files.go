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
	return files.ClientTLS(cfg.Logger, "TLS files of Redis", name, cfg.CAFile, cfg.CertFile, cfg.KeyFile)
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
