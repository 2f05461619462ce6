package demo

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

// startRedis starts a server without persistence.
func startRedis(ctx context.Context, dir string, o Options) (*leaseService, error) {
	program, err := findProgram("redis-server", "redis", o.Redis)
	if err != nil {
		return nil, err
	}
	address, err := scratch.FreeAddress()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, "--bind", "127.0.0.1", "--port", scratch.Port(address), "--dir", dir, "--save", "", "--appendonly", "no")
	s := &leaseService{
		what:   "Redis, one server at " + address,
		config: fmt.Sprintf("  redis:\n    address: %s\n", address), address: address,
	}
	return s.start(ctx, dir, "redis", cmd, func() error { return isServing(ctx, address) })
}

// isServing returns nil if the server answers.
func isServing(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	var answer [64]byte
	n, err := conn.Read(answer[:])
	if err != nil {
		return err
	}
	if text := string(answer[:n]); !strings.HasPrefix(text, "+PONG") {
		return fmt.Errorf("Redis is not ready: %s", strings.TrimSpace(text))
	}
	return nil
}
