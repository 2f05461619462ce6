package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// startPostgres creates the database with its tables. Nothing waits for a disk.
func (s *servers) startPostgres(ctx context.Context) (err error) {
	if s.pgPort, err = freePort(); err != nil {
		return err
	}
	data := filepath.Join(s.dir, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(s.bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-locale", "-E", "UTF8", "--no-sync")
	initdb.Dir, initdb.SysProcAttr = s.dir, &syscall.SysProcAttr{Credential: s.user}
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("run initdb: %w\n%s", err, out)
	}
	if _, err := s.start(s.user, nil, filepath.Join(s.bin, "postgres"), "-D", data, "-h", "127.0.0.1", "-p", s.pgPort, "-k", "",
		"-c", "shared_buffers=256MB", "-c", fmt.Sprint("max_connections=", most), "-c", "synchronous_commit=off", "-c", "fsync=off",
		"-c", "checkpoint_timeout=1h", "-c", "max_wal_size=8GB", "-c", "autovacuum=off"); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	out, err := exec.CommandContext(ctx, filepath.Join(s.bin, "postgres"), "--version").Output()
	if err != nil {
		return fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	s.version = strings.TrimSpace(strings.TrimPrefix(string(out), "postgres (PostgreSQL) "))
	return s.createTables(ctx)
}

func (s *servers) createTables(ctx context.Context) error {
	ready := func() error { return s.exec(ctx, "postgres", s.pgPort, "SELECT 1") }
	if err := retry(ctx, ready); err != nil {
		return fmt.Errorf("wait for PostgreSQL: %w", err)
	}
	if err := s.exec(ctx, "postgres", s.pgPort, "CREATE ROLE bench LOGIN", "CREATE DATABASE bench OWNER bench"); err != nil {
		return err
	}
	var statements []string
	for table, rows := range map[string]int{"counters": 100_000, "guarded": 100_000, "tellers": 100, "branches": 10} {
		statements = append(statements, fmt.Sprintf("CREATE TABLE %s (id int PRIMARY KEY, n int NOT NULL) WITH (fillfactor = 50)", table),
			fmt.Sprintf("INSERT INTO %s SELECT i, 0 FROM generate_series(1, %d) i", table, rows), "ANALYZE "+table)
	}
	return s.execIn(ctx, role, s.pgPort, role, append(statements, "CREATE TABLE history (id int, n int)",
		"CREATE TABLE fences (resource text PRIMARY KEY, epoch bigint NOT NULL)", "INSERT INTO fences VALUES ('bench', 1)")...)
}

// installed returns the path of a program, which Debian has in a directory of root's.
func installed(name string) (string, error) {
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrNotFound) {
		return exec.LookPath("/usr/sbin/" + name)
	}
	return path, err
}

// startHAProxy starts a relay that knows nothing of the protocol.
func (s *servers) startHAProxy(ctx context.Context, p *plan) error {
	path, err := installed("haproxy")
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	file := filepath.Join(s.dir, "haproxy.cfg")
	text := fmt.Sprintf("global\n  maxconn 1000\n  nbthread 1\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n"+
		"listen postgres\n  bind 127.0.0.1:%s\n  server postgres 127.0.0.1:%s\n", port, s.pgPort)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	cmd, err := s.start(s.user, nil, path, "-db", "-f", file)
	if err != nil {
		return fmt.Errorf("start HAProxy: %w", err)
	}
	s.add(p, &contender{name: "haproxy", port: port, process: cmd})
	return s.await(ctx, port, "haproxy")
}

// startPgBouncer starts PgBouncer in session mode. An application's own fence goes through it, too.
func (s *servers) startPgBouncer(ctx context.Context, p *plan) error {
	path, err := installed("pgbouncer")
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	ini, users := filepath.Join(s.dir, "pgbouncer.ini"), filepath.Join(s.dir, "users.txt")
	text := fmt.Sprintf("[databases]\nbench = host=127.0.0.1 port=%s dbname=bench\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %s\n"+
		"unix_socket_dir =\nauth_type = trust\nauth_file = %s\npool_mode = session\ndefault_pool_size = %d\nmax_client_conn = %d\n", s.pgPort, port, users, most-50, most)
	if err := errors.Join(os.WriteFile(ini, []byte(text), 0o644), os.WriteFile(users, []byte("\"bench\" \"\"\n"), 0o644)); err != nil {
		return err
	}
	cmd, err := s.start(s.user, nil, path, "-q", ini)
	if err != nil {
		return fmt.Errorf("start PgBouncer: %w", err)
	}
	s.add(p, &contender{name: "pgbouncer", port: port, process: cmd})
	s.add(p, &contender{name: "own fence", port: port, process: cmd, own: true})
	return s.await(ctx, port, "pgbouncer")
}
