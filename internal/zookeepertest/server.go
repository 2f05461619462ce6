package zookeepertest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost/fencepost/internal/child"
	"github.com/fencepost/fencepost/internal/ports"
)

// server is one server. It can be stopped and started again.
type server struct {
	name, data, config string
	client, secure     *ports.Port
	peer, vote         *ports.Port
	log                *os.File
	cmd                *exec.Cmd // nil while it is stopped
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

func (s *server) start() error {
	if s.cmd != nil {
		return nil
	}
	program, err := child.Program("FENCEPOST_TEST_ZOOKEEPER", "zookeeper")
	if err != nil {
		return err
	}
	cmd := exec.Command(program, s.config)
	// Servers that were paused would try to elect a leader after up to a minute only (FastLeaderElection).
	cmd.Env = append(os.Environ(), "JVMFLAGS=-Dzookeeper.fastleader.maxNotificationInterval=500")
	cmd.Stdout, cmd.Stderr = s.log, s.log
	child.OwnSession(cmd, syscall.SIGKILL)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	s.cmd = cmd
	return nil
}

func (s *server) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // always "killed", as intended
	s.cmd = nil
}

// await returns when the server serves clients. It says imok before that.
func (s *server) await() error {
	deadline := time.Now().Add(patience)
	for {
		mode, err := s.mode()
		if err == nil && mode != "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("ZooKeeper did not become ready: mode %q: %w", mode, err)
		}
		var status syscall.WaitStatus
		if pid, werr := syscall.Wait4(s.cmd.Process.Pid, &status, syscall.WNOHANG, nil); werr == nil && pid == s.cmd.Process.Pid {
			return errors.New("ZooKeeper ended at once")
		}
		time.Sleep(100 * time.Millisecond)
	}
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

// Pause freezes a server, and returns when it has stopped: connections stay open, but it does not
// respond. On a busy machine its threads run on for a while after the signal.
func (e *Ensemble) Pause(t testing.TB, i int) {
	t.Helper()
	e.servers[i].signal(t, syscall.SIGSTOP)
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(e.servers[i].cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	if err != nil || !status.Stopped() {
		t.Fatalf("pause ZooKeeper: process %d, status %v: %v", pid, status, err)
	}
}

// Continue ends a Pause.
func (e *Ensemble) Continue(t testing.TB, i int) { e.servers[i].signal(t, syscall.SIGCONT) }

func (s *server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("send %v to ZooKeeper: %v", sig, err)
	}
}

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

// tail returns the ends of the servers' logs.
func (e *Ensemble) tail() string {
	var all strings.Builder
	for _, s := range e.servers {
		end, err := s.log.Seek(0, io.SeekEnd)
		if err != nil {
			return err.Error()
		}
		text := make([]byte, 4096)
		n, _ := s.log.ReadAt(text, max(0, end-int64(len(text))))
		fmt.Fprintf(&all, "%s:\n%s\n", s.name, text[:n])
	}
	return all.String()
}
