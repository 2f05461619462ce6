// Package zookeepertest runs a real ZooKeeper for tests.
//
// An ensemble keeps its data in a directory of its own, which is removed with it, and dies with
// the test process.
package zookeepertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/ports"
	"github.com/fencepost/fencepost/internal/servertest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

// patience bounds the start of an ensemble and each request of this package.
const patience = 3 * time.Minute

// Tick is the tick of the servers. A session ends up to one tick after its timeout.
const Tick = 250 * time.Millisecond

// Ensemble is a ZooKeeper ensemble.
type Ensemble struct {
	dir     string
	servers []*server
}

// Option changes how an ensemble is started.
type Option func(*options)

type options struct {
	servers int
	most    time.Duration // the longest session timeout
	lines   []string      // of the configuration
	tls     bool
}

// WithServers starts this many servers instead of one.
func WithServers(n int) Option { return func(o *options) { o.servers = n } }

// WithTLS makes the servers serve clients over TLS at SecureAddr too. The files are PEM; serverFile
// has the certificate and the key. Clients have to show a certificate of the authority in caFile.
func WithTLS(caFile, serverFile string) Option {
	return func(o *options) {
		o.tls = true
		o.lines = append(o.lines, "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
			"ssl.keyStore.location="+serverFile, "ssl.keyStore.type=PEM", "ssl.trustStore.location="+caFile, "ssl.trustStore.type=PEM",
			"ssl.clientAuth=need", "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider")
	}
}

var shared servertest.Shared[*Ensemble]

// Shared returns the ensemble of one server that all tests of this process share. Tests must not
// change it and must use a prefix of their own. StopShared ends it.
func Shared(t testing.TB) *Ensemble {
	t.Helper()
	return shared.Get(t, func() (*Ensemble, error) { return start() })
}

// StopShared ends the shared ensemble, if there is one. It is called after the last test of the
// process.
func StopShared() { shared.Stop() }

// Start returns an ensemble for one test, which may stop, pause or restore it. It ends with the
// test.
func Start(t testing.TB, opts ...Option) *Ensemble {
	t.Helper()
	stopwatch.AwaitRoom(t)
	e, err := start(opts...)
	if err != nil {
		t.Fatalf("start ZooKeeper: %v", err)
	}
	t.Cleanup(e.Stop)
	return e
}

// Addr returns host:port of the first server's interface for clients.
func (e *Ensemble) Addr() string { return e.servers[0].client.Address() }

// Settings are the environment variables with which Fencepost keeps its leases there, under a prefix.
func (e *Ensemble) Settings(prefix string) []string {
	return []string{"FENCEPOST_ELECTION_PROVIDER=zookeeper", "FENCEPOST_ELECTION_ZOOKEEPER_SERVERS=" + strings.Join(e.Addrs(), ","), "FENCEPOST_ELECTION_ZOOKEEPER_PREFIX=" + prefix}
}

// SecureAddr returns host:port of the first server's interface for clients with TLS.
func (e *Ensemble) SecureAddr() string { return e.servers[0].secure.Address() }

// Addrs returns host:port of all servers' interfaces for clients.
func (e *Ensemble) Addrs() []string {
	all := make([]string, len(e.servers))
	for i, s := range e.servers {
		all[i] = s.client.Address()
	}
	return all
}

// Leader returns the place of the server that leads the ensemble.
func (e *Ensemble) Leader(t testing.TB) int {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for i, s := range e.servers {
			if mode, err := s.mode(); err == nil && mode == "leader" {
				return i
			}
		}
	}
	t.Fatal("ZooKeeper has no leader")
	return 0
}

// Kill ends a server as a crash does. Its data stay.
func (e *Ensemble) Kill(i int) { e.servers[i].Kill() }

// Restart starts all servers that do not run, and returns when all of them serve clients.
func (e *Ensemble) Restart(t testing.TB) {
	t.Helper()
	if err := e.run(); err != nil {
		t.Fatalf("start ZooKeeper again: %v", err)
	}
}

// Backup returns a copy of the data of all servers, which are stopped meanwhile.
func (e *Ensemble) Backup(t testing.TB) (backup string) {
	t.Helper()
	backup = filepath.Join(t.TempDir(), "backup")
	for i := range e.servers {
		e.Kill(i)
	}
	for _, s := range e.servers {
		if err := os.CopyFS(filepath.Join(backup, s.name), os.DirFS(s.data)); err != nil {
			t.Fatalf("copy the data of ZooKeeper: %v", err)
		}
	}
	e.Restart(t)
	return backup
}

// Restore puts a copy of the data in place of what the servers have, and starts them again.
func (e *Ensemble) Restore(t testing.TB, backup string) {
	t.Helper()
	for i := range e.servers {
		e.Kill(i)
	}
	for _, s := range e.servers {
		if err := errors.Join(os.RemoveAll(s.data), os.CopyFS(s.data, os.DirFS(filepath.Join(backup, s.name)))); err != nil {
			t.Fatalf("put back the data of ZooKeeper: %v", err)
		}
	}
	e.Restart(t)
}

// Stop ends the ensemble and discards its data. Stopping twice is harmless.
func (e *Ensemble) Stop() {
	for _, s := range e.servers {
		s.Kill()
		for _, p := range s.ports() {
			p.Release()
		}
		_ = s.Log.Close()
	}
	_ = os.RemoveAll(e.dir)
}

// start starts an ensemble.
func start(opts ...Option) (*Ensemble, error) {
	o := options{servers: 1, most: 2 * time.Minute}
	for _, opt := range opts {
		opt(&o)
	}
	dir, err := os.MkdirTemp("", "zookeeper-")
	if err != nil {
		return nil, err
	}
	e := &Ensemble{dir: dir}
	if err := e.plan(o); err != nil {
		e.Stop()
		return nil, err
	}
	if err := e.run(); err != nil {
		e.Stop()
		return nil, err
	}
	return e, nil
}

// plan gives each of the servers its place.
func (e *Ensemble) plan(o options) error {
	var peers []string
	for i := range o.servers {
		s := &server{name: fmt.Sprint("s", i)}
		s.Process = servertest.Process{
			Name: "ZooKeeper", Program: "zookeeper", Variable: "FENCEPOST_TEST_ZOOKEEPER",
			// Servers that were paused would try to elect a leader after up to a minute only (FastLeaderElection).
			Env: []string{"JVMFLAGS=-Dzookeeper.fastleader.maxNotificationInterval=500"},
		}
		s.data, s.config = filepath.Join(e.dir, s.name), filepath.Join(e.dir, s.name+".cfg")
		s.Args = []string{s.config}
		var errs [6]error
		s.client, errs[0] = ports.Reserve()
		s.secure, errs[1] = ports.Reserve()
		s.peer, errs[2] = ports.Reserve()
		s.vote, errs[3] = ports.Reserve()
		s.Log, errs[4] = os.Create(filepath.Join(e.dir, s.name+".log"))
		errs[5] = os.Mkdir(s.data, 0o700)
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		e.servers = append(e.servers, s)
		peers = append(peers, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", i+1, s.peer.Number, s.vote.Number))
	}
	for i, s := range e.servers {
		lines := []string{
			fmt.Sprint("tickTime=", Tick.Milliseconds()), fmt.Sprint("maxSessionTimeout=", o.most.Milliseconds()),
			"initLimit=40", "syncLimit=8", "dataDir=" + s.data, "clientPortAddress=127.0.0.1", fmt.Sprint("clientPort=", s.client.Number),
			"maxClientCnxns=0", "admin.enableServer=false", "4lw.commands.whitelist=*", "forceSync=no", "preAllocSize=1024",
			// A server that looks for a leader in vain asks the others less and less often, by default once a minute in
			// the end.
			"fastleader.maxNotificationInterval=1000",
		}
		if o.tls {
			lines = append(lines, "secureClientPortAddress=127.0.0.1", fmt.Sprint("secureClientPort=", s.secure.Number))
		}
		if len(peers) > 1 {
			lines = append(lines, peers...)
			if err := os.WriteFile(filepath.Join(s.data, "myid"), fmt.Append(nil, i+1), 0o600); err != nil {
				return err
			}
		}
		lines = append(lines, o.lines...)
		if err := os.WriteFile(s.config, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// run starts the servers that do not run, and waits for all of them.
func (e *Ensemble) run() error {
	for _, s := range e.servers {
		if err := s.Launch(); err != nil {
			return err
		}
	}
	for _, s := range e.servers {
		if err := s.await(); err != nil {
			return err
		}
	}
	return nil
}
