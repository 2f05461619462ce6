package zookeepertest

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost/fencepost/internal/ports"
	"github.com/fencepost/fencepost/internal/servertest"
)

// server is one server. It can be stopped and started again.
type server struct {
	servertest.Process
	name, data, config string
	client, secure     *ports.Port
	peer, vote         *ports.Port
}

// ports returns those that are reserved.
func (s *server) ports() (all []*ports.Port) {
	for _, p := range []*ports.Port{s.client, s.secure, s.peer, s.vote} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// await returns when the server serves clients. It says imok before that.
func (s *server) await() error {
	return s.Await(patience, func() error {
		mode, err := s.mode()
		if err == nil && mode == "" {
			err = errors.New("it does not serve clients")
		}
		return err
	})
}

// mode returns "leader", "follower" or "standalone", or "" if the server does not serve clients.
func (s *server) mode() (string, error) {
	conn, err := net.DialTimeout("tcp", s.client.Address(), time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("srvr")); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(answer)) {
		if mode, ok := strings.CutPrefix(line, "Mode: "); ok {
			return strings.TrimSpace(mode), nil
		}
	}
	return "", nil
}

// Pause freezes a server: connections stay open, but it does not respond.
func (e *Ensemble) Pause(t testing.TB, i int) { t.Helper(); e.servers[i].Pause(t) }

// Continue ends a Pause.
func (e *Ensemble) Continue(t testing.TB, i int) { t.Helper(); e.servers[i].Continue(t) }

// Client returns a client of all servers, as an operator has one, with the given user of the scheme
// digest if it is not "". It is closed when the test ends.
func (e *Ensemble) Client(t testing.TB, user, password string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect(e.Addrs(), time.Minute, zk.WithLogInfo(false), zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatalf("connect to ZooKeeper: %v", err)
	}
	t.Cleanup(conn.Close)
	if user != "" {
		if err := conn.AddAuth("digest", []byte(user+":"+password)); err != nil {
			t.Fatalf("log in to ZooKeeper: %v", err)
		}
	}
	return conn
}

// quiet drops what the library logs.
type quiet struct{}

func (quiet) Printf(string, ...any) {}
