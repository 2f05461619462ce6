package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// providers are like those of the command.
var providers = []Provider{
	{Name: "postgres", Validate: func(*Config, Fault) {}},
	{Name: "consul", Validate: func(c *Config, fault Fault) { c.Election.Consul.Validate(fault) }},
	{Name: "etcd", Validate: func(c *Config, fault Fault) { c.Election.Etcd.Validate(fault) }},
	{Name: "kubernetes", Validate: func(c *Config, fault Fault) { c.Election.Kubernetes.Validate(fault) }},
	{Name: "raft", Validate: ValidateRaft},
	{Name: "redis", Validate: func(c *Config, fault Fault) { c.Election.Redis.Validate(fault) }},
	{Name: "zookeeper", Validate: func(c *Config, fault Fault) { c.Election.ZooKeeper.Validate(fault) }},
}

// load reads a configuration file with this text, without an environment.
func load(t *testing.T, text string) (Config, error) {
	t.Helper()
	return Load(writeConfig(t, text), nil, providers)
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fencepost.yml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaultsAreValid(t *testing.T) {
	t.Parallel()
	cfg := Default()
	if err := cfg.Validate(providers); err != nil {
		t.Fatal(err)
	}
}

func TestAnEmptyFileMeansTheDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := load(t, "")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := dump(&cfg), dump(new(Default())); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestFileOverridesDefaultsAndEnvironmentOverridesFile(t *testing.T) {
	t.Parallel()
	path := writeConfig(t, `
listen: 0.0.0.0:7000
lease:
  ttl: 20s
election:
  provider: consul
  consul:
    token: from-file
resources:
  billing:
    ttl: 15s
    worker_timeout: 0s
unfenced:
  users:
    migrator: allow
`)
	cfg, err := Load(path, []string{
		"FENCEPOST_ELECTION_CONSUL_TOKEN=from-env", "FENCEPOST_CONTROL_PASSWORD=se=cret", "FENCEPOST_UPSTREAM_ADDRESS=db:5432",
		"FENCEPOST_LEASE_GRACE=3s", "FENCEPOST_LIMITS_MAX_CONNECTIONS=7", "FENCEPOST_LISTEN=",
	}, providers)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"listen", cfg.Listen.String(), "0.0.0.0:7000"},
		{"lease.ttl", cfg.Lease.TTL.D(), 20 * time.Second},
		{"lease.grace", cfg.Lease.Grace.D(), 3 * time.Second},
		{"token", cfg.Election.Consul.Token, "from-env"},
		{"password", cfg.Control.Password, "se=cret"},
		{"upstream", cfg.Upstream.Address.String(), "db:5432"},
		{"max_connections", cfg.Limits.MaxConnections, 7},
		{"billing", cfg.LeaseFor(cfg.Resources["billing"]), Lease{TTL: Duration(15 * time.Second), MaxTimeoutFactor: 4, Grace: Duration(3 * time.Second)}},
		{"another resource", cfg.LeaseFor(cfg.Resources["other"]), cfg.Lease},
		{"unfenced.default", cfg.Unfenced.Default, "read-only"},
		{"unfenced.users.migrator", cfg.Unfenced.Users["migrator"], "allow"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", c.what, c.got, c.want)
		}
	}
}

// TestAdminMayBeAnAddress: as it was when the address was its only setting.
func TestAdminMayBeAnAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text    string
		environ []string
		want    Admin
	}{
		{"admin: 1.2.3.4:5", nil, Admin{Address: "1.2.3.4:5", OpenReads: true}},
		{`admin: ""`, nil, Admin{OpenReads: true}},
		{"admin:", nil, Default().Admin},
		{"admin: {open_reads: false, token: t}", nil, Admin{Address: Default().Admin.Address, Token: "t"}},
		{"admin: 1.2.3.4:5", []string{"FENCEPOST_ADMIN=1.2.3.4:6", "FENCEPOST_ADMIN_TOKEN=t"}, Admin{Address: "1.2.3.4:6", OpenReads: true, Token: "t"}},
		{"", []string{"FENCEPOST_ADMIN_ADDRESS=1.2.3.4:7"}, Admin{Address: "1.2.3.4:7", OpenReads: true}},
	} {
		cfg, err := Load(writeConfig(t, c.text), c.environ, providers)
		if err != nil || cfg.Admin != c.want {
			t.Errorf("%s %v: %+v, %v; want %+v", c.text, c.environ, cfg.Admin, err, c.want)
		}
	}
}

func TestTheTokenMayBeInAFile(t *testing.T) {
	t.Parallel()
	c := Admin{TokenFile: writeConfig(t, " secret\n")}
	if err := c.ReadToken(); err != nil || c.Token != "secret" {
		t.Errorf("got %q, %v", c.Token, err)
	}
	for _, path := range []string{writeConfig(t, "\n"), filepath.Join(t.TempDir(), "nothing")} {
		c := Admin{TokenFile: path}
		if err := c.ReadToken(); err == nil || !strings.Contains(err.Error(), "admin.token_file") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestUnfencedMayBeOneWord(t *testing.T) {
	t.Parallel()
	cfg, err := load(t, "unfenced: refuse")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Unfenced.Default != "refuse" {
		t.Errorf("unfenced.default is %q", cfg.Unfenced.Default)
	}
}

func TestFaultsSayWhatToDo(t *testing.T) {
	t.Parallel()
	tenfold := "a0: &a0 x\n" // each stands for ten of the one before
	for i := range 6 {
		tenfold += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 10))
	}
	for _, c := range []struct{ text, want string }{
		{"lisen: 1.2.3.4:5", `unknown setting "lisen": did you mean "listen"?`},
		{"lease: {ttl: 10s, ttll: 1s}", `unknown setting "lease.ttll": did you mean "lease.ttl"?`},
		{"ttl: 10s", `unknown setting "ttl": did you mean "lease.ttl"?`},
		{"upstream.address: a:1", `unknown setting "upstream.address": write each part in a group of its own, as upstream: {address: …}`},
		{"election: {consul.address: a:1}", `unknown setting "election.consul.address": write each part in a group of its own, as consul: {address: …}`},
		{"control: {address: 'a:1'}", `did you mean "admin.address" or "upstream.address" or "election.consul.address" or "election.redis.address"?`},
		{"worker: {something: 1}", `unknown setting "worker.something": worker has identity`},
		{"resources: {billing: {tll: 10s}}", `did you mean "resources.billing.ttl"?`},
		{"unfenced: {defalt: allow}", `unknown setting "unfenced.defalt": did you mean "unfenced.default"?`},
		{"limits: {max_connections: many}", `limits.max_connections: invalid number "many"`},
		{"pprof: perhaps", `pprof: invalid boolean "perhaps": use true or false`},
		{"listen: [1, 2]", `listen is "2": use host:port`},
		{"listen: {a: b}", "listen must be a single value"},
		{"listen: []", "listen is empty: name at least one address"},
		{"listen: 'a:1, a:1'", "listen has a:1 twice"},
		{"listen: /run/fencepost/", "/run/fencepost/.s.PGSQL.6432"},
		{"listen: run/fencepost.sock", "the absolute path of a Unix socket"},
		{"listen: /" + strings.Repeat("x", 120), "bytes for the path of a Unix socket"},
		{"listen: /s\ntls: {mode: require, cert_file: a, key_file: b, client_ca_file: c, client_cert: verify-ca}", "listen has the Unix socket /s, whose clients use no TLS"},
		{"listen_mode: 1777", `listen_mode: invalid permissions "1777"`},
		{"listen_mode: rwx", "use up to four octal digits"},
		{"proxy_protocol: {trusted: [10.0.0.0/8, lb.internal]}", `proxy_protocol.trusted: invalid address "lb.internal"`},
		{"proxy_protocol: {trusted: 10.1.2.3/8}", "use 10.0.0.0/8 for the range, or 10.1.2.3 for the address"},
		{"proxy_protocol: {trusted: '::ffff:10.0.0.0/104'}", "use an IP address or a range"},
		{"proxy_protocol: {trusted: 'fe80::1%eth0'}", "use an IP address or a range"},
		{"upstream: {address: /run/postgresql, tls: {mode: require}}", "Unix socket /run/postgresql/.s.PGSQL.5432, where Postgres speaks no TLS"},
		{"upstream: {address: /run/postgresql/.s.PGSQL.x}", "or the socket in it"},
		{"upstream: {address: /" + strings.Repeat("x", 100) + "}", "bytes for the path of a Unix socket"},
		{"lease: 10s", "lease must be a mapping"},
		{"[]", "the configuration must be a mapping"},
		{"resources: {billing: {users: biller}}", "resources.billing.users must be a list"},
		{"listen: 1.2.3.4:5\nlisten: 1.2.3.4:6", "yml:2: listen is already set in line 1"},
		{"lease:\n  ttl: [", "not valid YAML"},
		{"lease: &a\n  <<: *a\n", "yml:2: *a is a part of what it refers to"},
		{"resources: &a\n  r:\n    <<: [{}, *a]\n", "yml:3: *a is a part of what it refers to"},
		{tenfold, "the configuration has more than 100000 values: use fewer aliases"},
		{"unfenced: [allow]", "a single value, which is its default, or a mapping"},
		{"lease: {ttl: 10}", "use a number with a unit"},
		{"lease: {ttl: 1ms}", "lease.ttl is 1ms: use a value"},
		{"lease: {grace: -1s}", "lease.grace is -1s"},
		{"resources: {billing: {ttl: 1ms}}", "resources.billing.ttl"},
		{"resources: {billing: {reads: proven}}", "yml:1: resources.billing.reads is gone"},
		{"lease: {reads: proven}", `unknown setting "lease.reads"`},
		{"resources: {billing: {on_stale: ignore}}", "resources.billing.on_stale"},
		{"resources: {billing: {enforce: off}}", "resources.billing.enforce"},
		{"resources: {billing: {fence: rows}}", "resources.billing.fence"},
		{"resources: {billing: {fence: tables, on_stale: discard}}", "resources.billing has fence: tables and on_stale: discard"},
		{"election: {provider: chubby}", "postgres, consul, etcd, kubernetes, raft, redis, zookeeper"},
		{"election: {provider: consul, consul: {prefix: /a/}}", "neither starts nor ends with a slash"},
		{"election: {provider: consul, consul: {cert_file: a}}", "belong together"},
		{"election: {provider: consul, consul: {ca_file: a}}", "set scheme: https"},
		{"election: {provider: etcd, etcd: {endpoints: []}}", "election.etcd.endpoints is empty"},
		{"election: {provider: etcd, etcd: {endpoints: 'a:1, b'}}", `election.etcd.endpoints is "b": use host:port`},
		{"election: {provider: etcd, etcd: {endpoints: 'https://a:1'}}", "set election.etcd.scheme"},
		{"election: {provider: etcd, etcd: {endpoints: ':1'}}", "use host:port"},
		{"election: {provider: etcd, etcd: {endpoints: 'a/b:1'}}", "use host:port"},
		{"election: {provider: etcd, etcd: {endpoints: 'a:0'}}", "from 1 to 65535"},
		{"election: {provider: etcd, etcd: {endpoints: 'a:1, b:1, a:1'}}", `"a:1" twice`},
		{"election: {provider: etcd, etcd: {scheme: grpc}}", "http, https"},
		{"election: {provider: etcd, etcd: {prefix: a/}}", "neither starts nor ends with a slash"},
		{"election: {provider: etcd, etcd: {user: a}}", "set password or password_file too"},
		{"election: {provider: etcd, etcd: {password: a}}", "set user too"},
		{"election: {provider: etcd, etcd: {user: a, password: b, password_file: c}}", "both set"},
		{"election: {provider: etcd, etcd: {scheme: https, cert_file: a}}", "belong together"},
		{"election: {provider: etcd, etcd: {ca_file: a}}", "set scheme: https"},
		{"election: {provider: kubernetes, kubernetes: {prefix: a/b}}", "1 to 40 lower-case letters"},
		{"election: {provider: kubernetes, kubernetes: {namespace: A}}", "use the name of a namespace"},
		{"election: {provider: kubernetes, kubernetes: {context: a}}", "but no kubeconfig"},
		{"election: {provider: raft}", "election.raft.peers is empty"},
		{"election: {provider: raft, raft: {peers: '10.0.0.1:6434'}}", "use name=host:port"},
		{"election: {provider: raft, raft: {peers: [a=b]}}", `election.raft.peers has "a=b": use name=host:port`},
		{"election: {provider: raft, raft: {peers: 'a=b:0'}}", `election.raft.peers has "a=b:0"`},
		{"election: {provider: raft, raft: {peers: 'a=b:1, a=c:1'}}", "the node a twice"},
		{"election: {provider: raft, raft: {peers: 'a=b:1, c=b:1'}}", "the address b:1 twice"},
		{"election: {provider: raft, raft: {peers: a=b:1, ca_file: a, cert_file: b}}", "must all be set"},
		{"election: {provider: raft, raft: {peers: a=b:1, listen: ':1'}}", "a proxy without one is no node"},
		{"election: {provider: raft, raft: {peers: a=b:1, dir: /d}}", "but proxy.id is empty"},
		{"election: {provider: raft, raft: {peers: a=b:1, dir: /d}}\nproxy: {id: c}", "does not have this proxy, c"},
		{"election: {provider: raft, raft: {peers: a=b:1, dir: /d, listen: b}}\nproxy: {id: a}", "election.raft.listen is \"b\""},
		{"election: {provider: redis, redis: {address: a}}", "election.redis.address is \"a\": use host:port"},
		{"election: {provider: redis, redis: {address: ':6379'}}", "use host:port, e.g. 127.0.0.1:6379"},
		{"election: {provider: redis, redis: {address: 'redis://a:1/0'}}", "set election.redis.scheme, user, password and database"},
		{"election: {provider: redis, redis: {address: 'a:1,b:1'}}", "does not support Redis Cluster, and asks no Sentinel"},
		{"election: {provider: redis, redis: {scheme: https}}", "redis, rediss"},
		{"election: {provider: redis, redis: {prefix: a/}}", "neither starts nor ends with a slash"},
		{"election: {provider: redis, redis: {prefix: '{a}'}}", "without spaces and braces"},
		{"election: {provider: redis, redis: {database: -1}}", "the number of a database"},
		{"election: {provider: redis, redis: {user: a}}", "set password or password_file too"},
		{"election: {provider: redis, redis: {password: b, password_file: c}}", "both set"},
		{"election: {provider: redis, redis: {scheme: rediss, cert_file: a}}", "belong together"},
		{"election: {provider: redis, redis: {ca_file: a}}", "set scheme: rediss"},
		{"election: {provider: zookeeper, zookeeper: {servers: []}}", "election.zookeeper.servers is empty"},
		{"election: {provider: zookeeper, zookeeper: {servers: 'a:1, b'}}", `election.zookeeper.servers is "b": use host:port`},
		{"election: {provider: zookeeper, zookeeper: {servers: 'a:1/chroot'}}", "from 1 to 65535"},
		{"election: {provider: zookeeper, zookeeper: {servers: 'a:1, b:1, a:1'}}", `"a:1" twice`},
		{"election: {provider: zookeeper, zookeeper: {prefix: /a}}", "neither starts nor ends with a slash"},
		{"election: {provider: zookeeper, zookeeper: {prefix: a//b}}", "use the path of a znode"},
		{"election: {provider: zookeeper, zookeeper: {prefix: a/../b}}", "use the path of a znode"},
		{"election: {provider: zookeeper, zookeeper: {prefix: zookeeper}}", "outside /zookeeper"},
		{"election: {provider: zookeeper, zookeeper: {user: a}}", "set password or password_file too"},
		{"election: {provider: zookeeper, zookeeper: {user: 'a:b', password: c}}", "first colon"},
		{"election: {provider: zookeeper, zookeeper: {password: a}}", "set user too"},
		{"election: {provider: zookeeper, zookeeper: {user: a, password: b, password_file: c}}", "both set"},
		{"election: {provider: zookeeper, zookeeper: {tls: true, cert_file: a}}", "belong together"},
		{"election: {provider: zookeeper, zookeeper: {ca_file: a}}", "set tls: true"},
		{"unfenced: maybe", "allow, read-only, refuse"},
		{"unfenced: {users: {bob: maybe}}", "unfenced.users.bob"},
		{"admin: localhost", `admin.address is "localhost": use host:port`},
		{"admin: [a]", "admin must be a single value, which is its address, or a mapping"},
		{"admin: {adress: 'a:1'}", `did you mean "admin.address"?`},
		{"admin: {token: a, token_file: b}", "both set"},
		{"admin: {tls: {cert_file: a}}", "belong together"},
		{"admin: {tls: {client_ca_file: a}}", "set admin.tls.cert_file and key_file too"},
		{"upstream: {application_name: mine}", "client, worker"},
		{"upstream: {address: localhost}", "use host:port"},
		{"upstream: {address: 'localhost:x'}", "the port must be a number"},
		{"tls: {mode: prefer}", "disable, allow, require"},
		{"tls: {cert_file: a}", "tls.mode is disable: set mode: allow"},
		{"tls: {client_cert: verify-ca}", "tls.mode is disable: set mode: allow"},
		{"tls: {mode: allow, cert_file: a}", "set tls.cert_file and tls.key_file"},
		{"tls: {mode: require, cert_file: a, key_file: b, client_cert: verify-ca}", "set tls.client_ca_file"},
		{"tls: {mode: allow, cert_file: a, key_file: b, client_ca_file: c, client_cert: verify-full}", "set mode: require"},
		{"tls: {client_cert: maybe}", "optional, verify-ca, verify-full"},
		{"tls: {min_version: 1.1}", "tls.min_version is \"1.1\""},
		{"upstream: {tls: {mode: prefer}}", "disable, require, verify-ca, verify-full"},
		{"upstream: {tls: {ca_file: a}}", "upstream.tls.mode is disable"},
		{"upstream: {tls: {mode: require, ca_file: a}}", "set mode: verify-ca or verify-full"},
		{"upstream: {tls: {mode: verify-ca}}", "set upstream.tls.ca_file"},
		{"upstream: {tls: {mode: verify-full, key_file: a}}", "belong together"},
		{"upstream: {tls: {min_version: 1.4}}", "upstream.tls.min_version"},
		{"limits: {max_connections: 0}", "use at least 1"},
		{"limits: {max_resources: 0}", "limits.max_resources is 0: use at least 1"},
		{"limits: {resources_per_connection: -1}", "limits.resources_per_connection is -1: use 0 for no limit"},
		{"limits: {resources_per_user: -1}", "limits.resources_per_user is -1: use 0 for no limit"},
		{"limits: {resource_idle: 0s}", "limits.resource_idle is 0s"},
		{"unknown_resources: deny", "list the resources"},
		{"unknown_resources: maybe", `unknown_resources is "maybe"`},
		{"lease: {max_worker_timeout: -1s}", "lease.max_worker_timeout is -1s"},
		{"lease: {max_worker_timeout_factor: 0}", "lease.max_worker_timeout_factor is 0"},
		{"lease: {max_worker_timeout: 10s}", "lease.worker_timeout is 30s, longer than lease.max_worker_timeout (10s)"},
		{"resources: {billing: {max_worker_timeout: 10s}}", "resources.billing.worker_timeout is 30s, longer than"},
		{"lease: {worker_timeout: 0s, max_worker_timeout: 10s}", "lease.worker_timeout is 0s, longer than"},
		{"resources: {billing: {users: []}}", "resources.billing.users is empty"},
		{"resources: {billing: {election: tokens}}", "it must be one of lease, token"},
		{"resources: {billing: {max_jump: 5}}", "set resources.billing.election: token too"},
		{"resources: {billing: {election: token, max_jump: -1}}", "resources.billing.max_jump is -1"},
		{"resources: {billing: {election: token, ttl: 20s}}", "resources.billing.ttl is set, but with election: token there is no lease"},
		{"resources: {billing: {election: token, linger: 0s}}", "resources.billing.linger is set"},
		{"startup_timeout: 0s", "at least 1ms"},
		{"audit: {keep: 10m}", "audit.keep is 10m0s: use at least 1h0m0s, or 0 to keep everything"},
		{"audit: {keep: 30}", `audit.keep: invalid duration "30": use a number with a unit, e.g. 30d, 12h`},
		{"audit: {keep: -1d}", `audit.keep: invalid duration "-1d"`},
		{"audit: {keep: 40000d}", `audit.keep: invalid duration "40000d"`},
		{"a: 1\n---\nb: 2", `unknown setting "a"`},
		{"listen: 1.2.3.4:5\n---\nlisten: 1.2.3.4:6", "more than one YAML document"},
	} {
		t.Run(c.text, func(t *testing.T) {
			t.Parallel()
			_, err := load(t, c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v does not contain %q", err, c.want)
			}
		})
	}
}

// TestAllFaultsAtOnce: each has its line or its variable, in order.
func TestAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	path := writeConfig(t, `listen: 0.0.0.0
defaults: &defaults
  ttl: 20s
lease:
  ttl: 10
  grace: -1s
resources:
  b:
    worker_timeout: -5s
  a:
    <<: *defaults
    enforce: some
unfenced: maybe
pprof: yes
`)
	_, err := Load(path, []string{
		"FENCEPOST_LEASE_TLL=1s", "FENCEPOST_LOG_LEVEL=loud", "FENCEPOST_LIMITS_MAX_RESOURCES=x", "FENCEPOST_RESOURCES=a",
		"FENCEPOST_SOMETHING=1", "FENCEPOST_LEASE=", "HOME=/", "FENCEPOST_CONFIG=x", "FENCEPOST_TEST_PG=1", "FENCEPOST_DSN=x",
		"FENCEPOST_PORT=tcp://10.0.0.1:6432", "FENCEPOST_PORT_6432_TCP_ADDR=10.0.0.1", "FENCEPOST_ADMIN_SERVICE_HOST=10.0.0.1", "FENCEPOST_SERVICE_PORT_PG=6432",
	}, providers)
	if err == nil {
		t.Fatal("no error")
	}
	got := strings.ReplaceAll(err.Error(), path+":", "line ")
	want := `environment variable FENCEPOST_LEASE_TLL is not a setting: did you mean FENCEPOST_LEASE_TTL?
environment variable FENCEPOST_LIMITS_MAX_RESOURCES: invalid number "x": use an integer, e.g. 1000
environment variable FENCEPOST_RESOURCES is not a setting: resources, routes and unfenced.users can only be set in the file
environment variable FENCEPOST_SOMETHING is not a setting: remove it, or see docs/configuration.md for the settings
FENCEPOST_LOG_LEVEL: log.level is "loud": it must be one of debug, info, warn, error
line 1: listen is "0.0.0.0": use host:port, e.g. 127.0.0.1:5432, or the absolute path of a Unix socket
line 2: unknown setting "defaults": the settings are listen, listen_mode, proxy_protocol, admin, console, pprof, tls, upstream, control, election, lease, startup_wait, startup_timeout, shutdown_delay, drain_timeout, unfenced, worker, resources, unknown_resources, routes, proxy, limits, log, audit
line 5: lease.ttl: invalid duration "10": use a number with a unit, e.g. 500ms, 10s, 2m
line 6: lease.grace is -1s: use at least 1ms (transactions of the old epoch that last longer are ended)
line 9: resources.b.worker_timeout is -5s: use 0s for no timeout, or a positive duration
line 12: resources.a.enforce is "some": it must be one of on, shadow
line 13: unfenced.default is "maybe": it must be one of allow, read-only, refuse`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, goName := range []string{"config.", "main.", "!!", "unmarshal", "[]string", "map["} {
		if strings.Contains(got, goName) {
			t.Errorf("the errors contain %q", goName)
		}
	}
}

// TestSampleHoldsEverySettingWithItsDefault compares etc/fencepost.yml with the code.
func TestSampleHoldsEverySettingWithItsDefault(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "..", "etc", "fencepost.yml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// Uncomment the examples, so that they are decoded too: "#key: value".
	examples := regexp.MustCompile(`(?m)^( *)#((?:- )?[a-z_{}][^ ]*:)`).ReplaceAllString(string(text), "$1$2")
	for name, text := range map[string]string{"sample": string(text), "sample with its examples": examples} {
		cfg, err := load(t, text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, want := dump(&cfg), dump(new(Default())); !slices.Equal(got, want) {
			t.Errorf("%s: the values are not the defaults:\n%v\n%v", name, got, want)
		}
		if name != "sample" && (len(cfg.Resources) == 0 || len(cfg.Routes) == 0) {
			t.Error("the sample has no example of a resource, or none of a route")
		}
	}
	for _, s := range new(Default()).settings() {
		key := s.path[strings.LastIndex(s.path, ".")+1:]
		if !regexp.MustCompile(`(?m)^ *` + key + `:`).Match(text) {
			t.Errorf("the sample does not have %s", s.path)
		}
	}
	_, after, _ := strings.Cut(string(text), "\n#resources:\n")
	resources, _, _ := strings.Cut(after, "\n\n")
	for _, key := range resourceKeys() {
		if !regexp.MustCompile(`(?m)^ *#` + key + `:`).MatchString(resources) {
			t.Errorf("the sample does not have resources.<name>.%s", key)
		}
	}
}

// documentedSetting is the row of a setting in the documentation.
type documentedSetting struct {
	value  string // the default
	reload bool   // a reload applies it
}

// documentedSettings are the rows of docs/configuration.md, and of the pages of the lease services, which say of all of
// theirs that they need a restart.
func documentedSettings(t *testing.T) map[string]documentedSetting {
	t.Helper()
	row := regexp.MustCompile("(?m)^\\| `([a-z_.<>]+)` \\| (?:`([^`]*)`)? *\\| .*? \\|(?: (yes|restart) \\|)?$")
	rows := map[string]documentedSetting{}
	for _, page := range []string{"configuration", "consul", "etcd", "kubernetes-leases", "raft", "redis", "zookeeper"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", page+".md"))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range row.FindAllStringSubmatch(string(text), -1) {
			path, reload := m[1], m[3]
			switch _, twice := rows[path]; {
			case page != "configuration" && !strings.HasPrefix(path, "election."): // another table
				continue
			case twice:
				t.Errorf("the documentation has two rows for %s", path)
			case (page == "configuration") != (reload != ""):
				t.Errorf("docs/%s.md: the row for %s says %q about a reload", page, path, reload)
			}
			rows[path] = documentedSetting{value: m[2], reload: reload == "yes"}
		}
	}
	return rows
}

// TestDocumentationHasEverySettingWithItsDefault compares the documentation with the code, in both directions.
func TestDocumentationHasEverySettingWithItsDefault(t *testing.T) {
	t.Parallel()
	rows := documentedSettings(t)
	want := map[string]string{"unfenced.users": "", "routes": ""}
	for _, line := range dump(new(Default())) {
		path, value, _ := strings.Cut(line, "=")
		want[path] = value
	}
	for _, key := range resourceKeys() {
		want["resources.<name>."+key] = rows["resources.<name>."+key].value
	}
	for path, value := range want {
		if got, ok := rows[path]; !ok {
			t.Errorf("the documentation has no row for %s", path)
		} else if got.value != value {
			t.Errorf("the documentation says %s is %q by default, the code %q", path, got.value, value)
		}
	}
	for path := range rows {
		if _, ok := want[path]; !ok {
			t.Errorf("the documentation has %s, which the code does not know", path)
		}
	}
}

// TestDocumentationSaysWhatAReloadApplies compares the documentation with the code, in both directions.
func TestDocumentationSaysWhatAReloadApplies(t *testing.T) {
	t.Parallel()
	rows := documentedSettings(t)
	for path, row := range rows {
		if applied := isBelow(path, reloadable); row.reload != applied {
			t.Errorf("the documentation says that a reload applies %s: %v, but it is %v", path, row.reload, applied)
		}
	}
	for _, path := range reloadable {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(rows)), func(p string) bool { return isBelow(p, []string{path}) }) {
			t.Errorf("%s is reloadable, but is no setting", path)
		}
	}
}

// resourceKeys lists the settings of a resource.
func resourceKeys() (keys []string) {
	for field := range reflect.TypeFor[Resource]().Fields() {
		keys = append(keys, field.Tag.Get("yaml"))
	}
	return keys
}

// dump lists all settings as path=value.
func dump(c *Config) []string {
	var lines []string
	for _, s := range c.settings() {
		lines = append(lines, fmt.Sprintf("%s=%v", s.path, s.value.Interface()))
	}
	return lines
}

// TestResourceNamesAreLimitedInBytes uses letters of two bytes.
func TestResourceNamesAreLimitedInBytes(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("\u00e4", fencing.MaxName/2)
	if _, err := load(t, "resources: {"+longest+": {}}"); err != nil {
		t.Errorf("the longest name: %v", err)
	}
	_, err := load(t, "resources: {"+longest+"x: {}}")
	if err == nil || !strings.Contains(err.Error(), "201 bytes") || !strings.Contains(err.Error(), fencing.NameRule) {
		t.Errorf("a longer name: %v", err)
	}
}
