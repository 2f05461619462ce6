// Package etcdtest runs a real etcd for tests.
//
// A cluster keeps its data in a directory of its own, which is removed with it, and dies with
// the test process.
package etcdtest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/ports"
	"github.com/fencepost/fencepost/internal/servertest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

// patience bounds the start of a cluster and each request of this package.
const patience = 60 * time.Second

// Cluster is an etcd cluster.
type Cluster struct {
	dir     string
	members []*member
	flags   []string // of all members
	scheme  string
	tls     *tls.Config // of root; nil without TLS
}

// member is one server. It can be stopped and started again.
type member struct {
	servertest.Process
	name         string
	client, peer *ports.Port
	data         string
}

// Option changes how a cluster is started.
type Option func(*options)

type options struct {
	members  int
	defaults bool
	tls      *tls.Config
	tlsFlags []string
}

// WithMembers starts this many members instead of one.
func WithMembers(n int) Option { return func(o *options) { o.members = n } }

// WithDefaultTicks keeps etcd's own election timeout, with which no TTL is shorter than 2 s,
// instead of one with which it can be 1 s.
func WithDefaultTicks() Option { return func(o *options) { o.defaults = true } }

// WithTLS makes the members serve clients over TLS with that certificate, and demand a
// certificate of the authority in caFile from them. root is how the operator connects.
func WithTLS(caFile, certFile, keyFile string, root *tls.Config) Option {
	return func(o *options) {
		o.tls = root
		o.tlsFlags = []string{"--client-cert-auth", "--trusted-ca-file=" + caFile, "--cert-file=" + certFile, "--key-file=" + keyFile}
	}
}

var shared servertest.Shared[*Cluster]

// Shared returns the cluster of one member that all tests of this process share. Tests must not
// change it and must use keys of their own. StopShared ends it.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	return shared.Get(t, func() (*Cluster, error) { return start() })
}

// StopShared ends the shared cluster, if there is one. It is called after the last test of the
// process.
func StopShared() { shared.Stop() }

// Start returns a cluster for one test, which may stop, pause or restore it. It ends with the
// test.
func Start(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	stopwatch.AwaitRoom(t)
	c, err := start(opts...)
	if err != nil {
		t.Fatalf("start etcd: %v", err)
	}
	t.Cleanup(c.Stop)
	return c
}

// Addr returns host:port of the first member's interface for clients.
func (c *Cluster) Addr() string { return c.members[0].client.Address() }

// Settings are the environment variables with which Fencepost keeps its leases there, under a prefix.
func (c *Cluster) Settings(prefix string) []string {
	return []string{"FENCEPOST_ELECTION_PROVIDER=etcd", "FENCEPOST_ELECTION_ETCD_ENDPOINTS=" + strings.Join(c.Endpoints(), ","), "FENCEPOST_ELECTION_ETCD_PREFIX=" + prefix}
}

// Endpoints returns host:port of all members' interfaces for clients.
func (c *Cluster) Endpoints() []string {
	all := make([]string, len(c.members))
	for i, m := range c.members {
		all[i] = m.client.Address()
	}
	return all
}

// Client returns a client of all members, with the given user if it is not "". It is closed when
// the test ends.
func (c *Cluster) Client(t testing.TB, user, password string) *clientv3.Client {
	t.Helper()
	client, err := c.connect(user, password)
	if err != nil {
		t.Fatalf("connect to etcd: %v", err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func (c *Cluster) connect(user, password string) (*clientv3.Client, error) {
	endpoints := c.Endpoints()
	for i, e := range endpoints {
		endpoints[i] = c.scheme + e
	}
	return clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: c.tls, Username: user, Password: password, DialTimeout: patience, Logger: zap.NewNop()})
}

// Leader returns the place of the member that leads the cluster.
func (c *Cluster) Leader(t testing.TB) int {
	t.Helper()
	client := c.Client(t, "", "")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		for i, e := range c.Endpoints() {
			one, cancel := context.WithTimeout(ctx, time.Second)
			status, err := client.Status(one, c.scheme+e)
			cancel()
			if err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
				return i
			}
		}
		if ctx.Err() != nil {
			t.Fatal("etcd has no leader")
		}
	}
}

// Pause freezes a member: connections stay open, but it does not respond.
func (c *Cluster) Pause(t testing.TB, i int) { t.Helper(); c.members[i].Pause(t) }

// Continue ends a Pause.
func (c *Cluster) Continue(t testing.TB, i int) { t.Helper(); c.members[i].Continue(t) }

// Kill ends a member as a crash does. Its data stay.
func (c *Cluster) Kill(i int) { c.members[i].Kill() }

// Restart starts all members that do not run, and returns when the cluster accepts writes.
func (c *Cluster) Restart(t testing.TB) {
	t.Helper()
	if err := c.run(); err != nil {
		t.Fatalf("start etcd again: %v", err)
	}
}

// Backup returns a copy of the data of a cluster of one member, which is stopped meanwhile.
func (c *Cluster) Backup(t testing.TB) (backup string) {
	t.Helper()
	backup = filepath.Join(t.TempDir(), "backup")
	c.Kill(0)
	if err := os.CopyFS(backup, os.DirFS(c.members[0].data)); err != nil {
		t.Fatalf("copy the data of etcd: %v", err)
	}
	c.Restart(t)
	return backup
}

// Restore puts a copy of the data in place of what a cluster of one member has, or nothing if
// backup is "", and starts the member again.
func (c *Cluster) Restore(t testing.TB, backup string) {
	t.Helper()
	c.Kill(0)
	if err := os.RemoveAll(c.members[0].data); err != nil {
		t.Fatalf("remove the data of etcd: %v", err)
	}
	if backup != "" {
		if err := os.CopyFS(c.members[0].data, os.DirFS(backup)); err != nil {
			t.Fatalf("copy the data of etcd: %v", err)
		}
		if err := os.Chmod(c.members[0].data, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c.Restart(t)
}

// Stop ends the cluster and discards its data. Stopping twice is harmless.
func (c *Cluster) Stop() {
	for _, m := range c.members {
		m.Kill()
		m.client.Release()
		m.peer.Release()
		_ = m.Log.Close()
	}
	_ = os.RemoveAll(c.dir)
}

// start starts a cluster.
func start(opts ...Option) (*Cluster, error) {
	o := options{members: 1}
	for _, opt := range opts {
		opt(&o)
	}
	dir, err := os.MkdirTemp("", "etcd-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, flags: o.tlsFlags, scheme: "http://", tls: o.tls}
	if c.tls != nil {
		c.scheme = "https://"
	}
	switch {
	case o.defaults:
	case o.members == 1: // which has no one to lose touch with
		c.flags = append(c.flags, "--heartbeat-interval=20", "--election-timeout=100")
	default:
		c.flags = append(c.flags, "--heartbeat-interval=100", "--election-timeout=650")
	}
	if err := c.plan(o.members); err != nil {
		c.Stop()
		return nil, err
	}
	if err := c.run(); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// plan gives each of the members its place.
func (c *Cluster) plan(members int) error {
	var peers []string
	for i := range members {
		m := &member{name: fmt.Sprint("m", i), data: filepath.Join(c.dir, fmt.Sprint("data-", i))}
		m.Process = servertest.Process{Name: "etcd", Program: "etcd", Variable: "FENCEPOST_TEST_ETCD"}
		var errs [3]error
		m.client, errs[0] = ports.Reserve()
		m.peer, errs[1] = ports.Reserve()
		m.Log, errs[2] = os.Create(filepath.Join(c.dir, fmt.Sprint("log-", i)))
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		c.members = append(c.members, m)
		peers = append(peers, m.name+"=http://"+m.peer.Address())
	}
	for _, m := range c.members {
		client, peer := c.scheme+m.client.Address(), "http://"+m.peer.Address()
		m.Args = append([]string{
			"--name=" + m.name, "--data-dir=" + m.data, "--unsafe-no-fsync", "--log-level=warn",
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=" + strings.Join(peers, ","),
		}, c.flags...)
	}
	return nil
}

// run starts the members that do not run, and waits for all of them.
func (c *Cluster) run() error {
	for _, m := range c.members {
		if err := m.Launch(); err != nil {
			return err
		}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: c.tls}, Timeout: time.Second}
	for _, m := range c.members {
		if err := m.Await(patience, func() error { return healthy(&client, c.scheme+m.client.Address()+"/health") }); err != nil {
			return err
		}
	}
	return nil
}

func healthy(client *http.Client, url string) error {
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}
