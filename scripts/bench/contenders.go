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
	if err := s.start(&process{name: "postgres", as: s.user, argv: []string{
		filepath.Join(s.bin, "postgres"), "-D", data, "-h", loopback, "-p", s.pgPort, "-k", s.dir,
		"-c", "shared_buffers=256MB", "-c", fmt.Sprint("max_connections=", most), "-c", "synchronous_commit=off", "-c", "fsync=off",
		"-c", "checkpoint_timeout=1h", "-c", "max_wal_size=8GB", "-c", "autovacuum=off",
		"-c", "ssl=on", "-c", "ssl_cert_file=" + s.certificate(), "-c", "ssl_key_file=" + s.key(),
	}}); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(s.bin, "postgres"), "--version").Output()
	if err != nil {
		return fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	s.version = strings.TrimSpace(strings.TrimPrefix(string(out), "postgres (PostgreSQL) "))
	return s.createTables(ctx)
}

func (s *servers) createTables(ctx context.Context) error {
	ready := func(ctx context.Context) error { return s.exec(ctx, "postgres", s.pgPort, "SELECT 1") }
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
	return s.execIn(ctx, role, s.pgPort, role, append(statements, "CREATE TABLE history (id int, n int)", "CREATE TABLE bulk (id int, filler text)",
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

// startServer starts the server of a route if it has one of its own, and otherwise has it contend itself.
func (s *servers) startServer(_ context.Context, p *plan, r route) error {
	if !r.stub {
		s.add(p, &contender{name: "direct", over: r, at: s.server(r)})
		return nil
	}
	if err := allowFiles(2*p.connections + 500); err != nil {
		return err
	}
	one, err := s.startStub(r, (&contender{at: place{loopback, s.pgPort}}).dsn())
	if err != nil {
		return fmt.Errorf("start a stub: %w", err)
	}
	s.stubs[r.name] = one
	return nil
}

// startHAProxy starts a relay that knows nothing of the protocol.
func (s *servers) startHAProxy(ctx context.Context, p *plan, r route) error {
	if r.name != plain {
		return nil
	}
	path, err := installed("haproxy")
	if err != nil {
		return err
	}
	at, err := s.listen(r)
	if err != nil {
		return err
	}
	file := filepath.Join(s.dir, "haproxy.cfg")
	text := fmt.Sprintf("global\n  maxconn 1000\n  nbthread 1\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n"+
		"listen postgres\n  bind %s\n  server postgres %s\n", at.address(), s.server(r).address())
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	one := &process{name: "haproxy", as: s.user, argv: []string{path, "-db", "-f", file}}
	return s.contend(ctx, p, one, &contender{name: "haproxy", over: r, at: at})
}

// startPgBouncer starts PgBouncer in session mode. An application's own fence goes through it, too.
func (s *servers) startPgBouncer(ctx context.Context, p *plan, r route) error {
	path, err := installed("pgbouncer")
	if err != nil {
		return err
	}
	at, err := s.listen(r)
	if err != nil {
		return err
	}
	name := r.named("pgbouncer")
	ini, users := filepath.Join(s.dir, name+".ini"), filepath.Join(s.dir, "users.txt")
	text := s.pgbouncerConfig(r, at, users, p.most(r))
	if err := errors.Join(os.WriteFile(ini, []byte(text), 0o644), os.WriteFile(users, []byte("\"bench\" \"\"\n"), 0o644)); err != nil {
		return err
	}
	one := &process{name: name, as: s.user, argv: []string{path, "-q", ini}}
	all := []*contender{{name: "pgbouncer", over: r, at: at}}
	if r.name == plain {
		all = append(all, &contender{name: "own fence", over: r, at: at, own: true})
	}
	return s.contend(ctx, p, one, all...)
}

// contend starts a proxy, and has it take part as all that it contends as.
func (s *servers) contend(ctx context.Context, p *plan, one *process, all ...*contender) error {
	if err := s.start(one); err != nil {
		return err
	}
	for _, c := range all {
		c.process = one
		s.add(p, c)
	}
	for _, c := range all {
		if err := s.await(ctx, c); err != nil {
			return err
		}
	}
	return nil
}
