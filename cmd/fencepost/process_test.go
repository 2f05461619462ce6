package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/logqueue"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
	"github.com/fencepost/fencepost/internal/service"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// served runs fencepost serve with that standard error, and returns its two addresses and its exit code.
func served(ctx context.Context, t *testing.T, s *pgtest.Server, stderr io.Writer) (listen, admin string, code chan int) {
	t.Helper()
	listen, admin = ports.For(t).Address(), ports.For(t).Address()
	env := map[string]string{
		"FENCEPOST_LISTEN": listen, "FENCEPOST_ADMIN_ADDRESS": admin, "FENCEPOST_UPSTREAM_ADDRESS": s.Addr(),
		"FENCEPOST_CONTROL_USER": pgtest.Control, "FENCEPOST_DRAIN_TIMEOUT": "1s",
	}
	in := terminal{stdout: io.Discard, stderr: stderr, getenv: func(name string) string { return env[name] }, environ: func() (all []string) {
		for name, value := range env {
			all = append(all, name+"="+value)
		}
		return all
	}}
	code = make(chan int, 1)
	go func() { code <- run(ctx, in, []string{"serve"}) }()
	return listen, admin, code
}

// TestNobodyWaitsForTheLog: standard error accepts nothing, as that of a stopped terminal does. Workers
// lead and write nevertheless, the admin address answers, and the process ends.
func TestNobodyWaitsForTheLog(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	stalled := make(chan struct{})
	defer close(stalled)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	listen, admin, code := served(ctx, t, s, writerFunc(func(b []byte) (int, error) {
		<-stalled
		return len(b), nil
	}))
	dsn := fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable&fencepost.resource=r&fencepost.worker=", pgtest.App, listen, db)
	connect := func(worker string) (conn *pgx.Conn, err error) {
		ctx, cancel := context.WithTimeout(ctx, servicetest.Patience)
		defer cancel()
		return pgx.Connect(ctx, dsn+worker)
	}
	var leader *pgx.Conn
	servicetest.Eventually(t, "the proxy to serve", func() bool {
		var err error
		leader, err = connect("leader&fencepost.campaign=wait")
		return err == nil
	})
	defer leader.Close(context.Background())
	follower, err := connect("follower")
	if err != nil {
		t.Fatal(err)
	}
	defer follower.Close(context.Background())
	if _, err := leader.Exec(ctx, "CREATE TABLE t (v int)"); err != nil {
		t.Fatal(err)
	}
	if _, err := follower.Exec(ctx, "INSERT INTO t VALUES (1)"); err == nil {
		t.Error("a follower has written")
	}
	resp, err := http.Get("http://" + admin + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	stop()
	select {
	case c := <-code:
		if c != exitFailure {
			t.Errorf("exit code %d, want %d, since lines were lost", c, exitFailure)
		}
	case <-time.After(servicetest.Patience):
		t.Fatal("the process does not end")
	}
}

// TestALogThatNobodyReadsEndsTheProxy in order: it cannot say any more what it refuses.
func TestALogThatNobodyReadsEndsTheProxy(t *testing.T) {
	t.Parallel()
	_, _, code := served(t.Context(), t, pgtest.Shared(t), writerFunc(func([]byte) (int, error) { return 0, syscall.EPIPE }))
	select {
	case c := <-code:
		if c != exitFailure {
			t.Errorf("exit code %d, want %d", c, exitFailure)
		}
	case <-time.After(servicetest.Patience):
		t.Fatal("the process does not end")
	}
}

// TestALineWithoutRoomIsNotToldToStandardError: that is where there is no room. It sets a variable of
// the process, so it does not run beside others.
func TestALineWithoutRoomIsNotToldToStandardError(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	before := os.Stderr
	os.Stderr = w
	full := writerFunc(func([]byte) (int, error) { return 0, logqueue.ErrExpired })
	logs, err := service.NewLoggers(config.Default().Log, full, full)
	os.Stderr = before
	if err != nil {
		t.Fatal(err)
	}
	logs.Log.Info("a line")
	logs.Audit.Info("another one")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if told, err := io.ReadAll(r); err != nil || len(told) > 0 {
		t.Errorf("standard error is told %q, %v", told, err)
	}
}
