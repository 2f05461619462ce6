package raft

import (
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencepost/fencepost/election/raft/disk"
)

// silent returns an address whose packets are dropped: that of a listener whose queue is full.
func silent(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(os.NewSyscallError("bind", err))
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: at.(*syscall.SockaddrInet4).Port}).String()
	for range 100 {
		conn, err := net.DialTimeout("tcp", address, attemptTimeout)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	t.Fatal("a listener whose queue is full takes any number of connections here")
	return ""
}

// The first node is made while the hosts of the others are off, or behind a firewall that drops packets,
// with a warning that says so.
func TestAClusterBeginsWhileAnotherHostIsSilent(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one", "two", "three")
	c.base.Peers["two"] = silent(t)
	cfg := c.config("one")
	core, seen := observer.New(zapcore.WarnLevel)
	cfg.Logger = zap.New(core)
	if err := Bootstrap(within(t, patience), cfg); err != nil {
		t.Fatal(err)
	}
	lines := seen.All()
	if len(lines) != 1 || !strings.Contains(lines[0].Message, "two ("+c.base.Peers["two"]+") does not answer") {
		t.Errorf("the warnings are %v", lines)
	}
	d, err := disk.Open(cfg.Dir, "one")
	if err != nil {
		t.Fatal(err)
	}
	_ = d.Close()
}
