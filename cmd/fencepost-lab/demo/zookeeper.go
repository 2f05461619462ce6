package demo

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

// startZooKeeper starts an ensemble of one server. Its program runs a server in the foreground; its
// argument is the configuration.
func startZooKeeper(ctx context.Context, dir string, o Options) (*leaseService, error) {
	program, err := findProgram("zookeeper", "zookeeper", o.ZooKeeper)
	if err != nil {
		return nil, err
	}
	address, err := scratch.FreeAddress()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "zoo.cfg")
	text := fmt.Sprintf("tickTime=500\ndataDir=%s\nclientPortAddress=%s\nclientPort=%s\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n",
		filepath.Join(dir, "zookeeper"), host, port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write ZooKeeper's configuration: %w", err)
	}
	cmd := exec.Command(program, config)
	s := &leaseService{
		what:   "ZooKeeper, one server at " + address,
		config: fmt.Sprintf("  zookeeper:\n    servers: %s\n", address), address: address,
	}
	return s.start(ctx, dir, "zookeeper", cmd, func() error { return serves(ctx, address) })
}

// serves returns nil if the server says that it serves clients.
func serves(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	if !strings.Contains(string(answer), "Mode: ") {
		return fmt.Errorf("ZooKeeper is not ready: %s", strings.TrimSpace(string(answer)))
	}
	return nil
}
