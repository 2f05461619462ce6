package config

import (
	"slices"
	"strings"
	"testing"
)

func TestAddressesInEveryForm(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"listen: 0.0.0.0:7000": "0.0.0.0:7000",
		"listen: [127.0.0.1:6432, /run/fencepost/.s.PGSQL.6432]": "127.0.0.1:6432,/run/fencepost/.s.PGSQL.6432",
		"listen:\n- unix:/run/s\n- '[::1]:6432'":                 "/run/s,[::1]:6432",
		"listen: '127.0.0.1:6432, /run/s'":                       "127.0.0.1:6432,/run/s",
		"listen:":                                                "127.0.0.1:6432",
		"listen: [127.0.0.1:0, 127.0.0.1:0]":                     "127.0.0.1:0,127.0.0.1:0",
	} {
		if cfg, err := load(t, text); err != nil || cfg.Listen.String() != want {
			t.Errorf("%s: %s, %v; want %s", text, cfg.Listen, err, want)
		}
	}
	cfg, err := Load(writeConfig(t, "proxy_protocol: {trusted: [10.0.0.0/8]}\nlisten_mode: 0660"), []string{
		"FENCEPOST_LISTEN=127.0.0.1:1, unix:/run/s", "FENCEPOST_PROXY_PROTOCOL_TRUSTED=192.168.1.5,2001:db8::/32", "FENCEPOST_LISTEN_MODE=0700",
	}, providers)
	if err != nil || cfg.Listen.String() != "127.0.0.1:1,/run/s" || cfg.ProxyProtocol.Trusted.String() != "192.168.1.5/32,2001:db8::/32" || cfg.ListenMode != 0o700 {
		t.Errorf("from the environment: listen %s, trusted %s, mode %s, %v", cfg.Listen, cfg.ProxyProtocol.Trusted, cfg.ListenMode, err)
	}
	if cfg, err = load(t, "proxy_protocol: {trusted: [10.0.0.0/8, 192.168.1.5]}\nlisten_mode: 0660"); err != nil || len(cfg.ProxyProtocol.Trusted.Prefixes()) != 2 || cfg.ListenMode != 0o660 {
		t.Errorf("from the file: trusted %s, mode %s, %v", cfg.ProxyProtocol.Trusted, cfg.ListenMode, err)
	}
}

func TestWherePostgresIs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"db:5432":                         {"db:5432"},
		"/run/postgresql":                 {"/run/postgresql/.s.PGSQL.5432"},
		"/run/postgresql/":                {"/run/postgresql/.s.PGSQL.5432"},
		"/run/postgresql/.s.PGSQL.6000":   {"/run/postgresql/.s.PGSQL.6000"},
		"unix:/tmp/.s.PGSQL.5432":         {"/tmp/.s.PGSQL.5432"},
		"db2:5432, db1:5433":              {"db2:5432", "db1:5433"},
		"[db2:5432, unix:/tmp, db1:5432]": {"db2:5432", "/tmp/.s.PGSQL.5432", "db1:5432"},
	} {
		if !strings.HasPrefix(text, "[") {
			text = "'" + text + "'"
		}
		cfg, err := load(t, "upstream: {address: "+text+"}")
		if got := cfg.Upstream.Endpoints(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"'db:5432,db:5432'":                     "db:5432 twice",
		"[/tmp, /tmp/.s.PGSQL.5432]":            "/tmp/.s.PGSQL.5432 twice",
		"'db1:5432,db2'":                        "use host:port",
		"[]":                                    "is empty",
		"[db:5432, /tmp], tls: {mode: require}": "speaks no TLS",
	} {
		if _, err := load(t, "upstream: {address: "+text+"}"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}
