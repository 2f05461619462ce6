package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/electors"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

func TestReadinessTellsThatPostgresIsAway(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, as for a server that hangs
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, address := range map[string]string{"nobody listens": "127.0.0.1:1", "nobody answers": silent.Addr().String()} {
		r := servicetest.Start(t, s, func(c *config.Config) { c.Upstream.Address = config.Addresses{config.Address(address)} })
		code, body := r.Ask(t, "/readyz")
		if code != http.StatusServiceUnavailable || strings.Contains(body, `"upstream": "ok"`) {
			t.Errorf("/readyz where %s: %d %s", name, code, body)
		}
		if code, _ := r.Ask(t, "/healthz"); code != http.StatusOK {
			t.Errorf("/healthz: %d", code)
		}
		out := runCommand(t, nil, "status", "--ready", "--admin="+r.AdminAddress().String())
		if out.code != exitFailure || !strings.Contains(out.stdout, "upstream: ") || !strings.Contains(out.stderr, "not ready") {
			t.Errorf("status --ready where %s: code %d: %s%s", name, out.code, out.stdout, out.stderr)
		}
	}
}

func TestListenErrorsNameTheSetting(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	taken := servicetest.Start(t, s, nil).Address()
	env := map[string]string{"FENCEPOST_LISTEN": taken, "FENCEPOST_ADMIN": "127.0.0.1:0"}
	out := runCommand(t, env, "serve")
	if out.code != exitFailure || !strings.Contains(out.stderr, "setting listen") {
		t.Errorf("code %d: %s", out.code, out.stderr)
	}
	env = map[string]string{"FENCEPOST_LISTEN": "127.0.0.1:0", "FENCEPOST_ADMIN": taken}
	out = runCommand(t, env, "serve")
	if out.code != exitFailure || !strings.Contains(out.stderr, "listen on the admin address") {
		t.Errorf("code %d: %s", out.code, out.stderr)
	}
}

// A lease service that takes long to open, because a disk hangs, keeps no proxy from ending.
func TestAProxyEndsWhileItsLeaseServiceIsOpened(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	hang := make(chan struct{})
	defer close(hang)
	open := unless(ctx, func(config.Config, string, *zap.Logger) (electors.Service, error) {
		cancel()
		<-hang
		return nil, nil
	})
	if s, err := open(config.Config{}, "p", zap.NewNop()); !errors.Is(err, context.Canceled) || s != nil {
		t.Errorf("it ends with %v, %v", s, err)
	}
}
