package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// TestWaitEndsWhenTheProxyIsReady: at first nobody listens at the admin address, then a proxy without Postgres does, and
// then one with it. What it waits for is said once.
func TestWaitEndsWhenTheProxyIsReady(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	admin := ports.For(t).Address()
	serve := func(upstream string) *servicetest.Running {
		return servicetest.Start(t, s, func(c *config.Config) {
			c.Admin.Address, c.Upstream.Address = admin, config.Addresses{config.Address(upstream)}
		})
	}
	var stdout bytes.Buffer
	var said servicetest.Buffer
	waited := make(chan int, 1)
	go func() {
		term := terminal{stdout: &stdout, stderr: &said, getenv: func(string) string { return "" }}
		waited <- run(context.Background(), term, []string{"wait", "--admin", admin, "--timeout", "5m"})
	}()
	says := func(what string) {
		t.Helper()
		servicetest.Eventually(t, "wait to say "+what, func() bool { return strings.Contains(said.String(), what) })
	}
	says("connection refused")
	without := serve("127.0.0.1:1")
	says("upstream: ")
	if err := without.Stop(); err != nil {
		t.Fatal(err)
	}
	serve(s.Addr())
	if code := <-waited; code != exitOK || !strings.HasPrefix(stdout.String(), "ready\n") {
		t.Errorf("code %d: %s%s", code, stdout.String(), said.String())
	}
	lines := strings.Split(said.String(), "\n")
	for i := range len(lines) - 1 {
		if lines[i] == lines[i+1] || !strings.HasPrefix(lines[i], "waiting: ") {
			t.Errorf("line %d of what it said:\n%s", i+1, said.String())
		}
	}
}

// TestWaitGivesUp at the timeout or at a signal, also while a proxy accepts the question and does not answer. It then
// says what was missing.
func TestWaitGivesUp(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	interrupted, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		ctx            context.Context
		admin, timeout string
		code           int
		says           []string
	}{
		"nobody listens": {t.Context(), "127.0.0.1:1", "1s", exitFailure, []string{"gave up after 1s: ", "connection refused"}},
		"nobody answers": {t.Context(), silent.Addr().String(), "1s", exitFailure, []string{"gave up after 1s: ", "query the admin address"}},
		"interrupted":    {interrupted, "127.0.0.1:1", "5m", exitFailure, []string{"context canceled: "}},
		"no time":        {t.Context(), "127.0.0.1:1", "0s", exitUsage, []string{"--timeout is 0s: it must be positive"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			term := terminal{stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" }}
			began := time.Now()
			code := run(c.ctx, term, []string{"wait", "--admin", c.admin, "--timeout", c.timeout})
			if took := time.Since(began); code != c.code || stdout.Len() > 0 || took > servicetest.Patience {
				t.Errorf("code %d after %s: %s", code, took, stdout.String())
			}
			for _, want := range c.says {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("it does not say %q:\n%s", want, stderr.String())
				}
			}
		})
	}
}
