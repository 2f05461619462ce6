package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// role is who runs the loads, and also the name of the database and of the resource.
const role = "bench"

// most is how many connections the servers allow.
const most = 300

// contender is one way to reach Postgres.
type contender struct {
	name    string
	port    string
	process *exec.Cmd // what is in between; nil if nothing is
	options string    // of libpq
	own     bool      // the application has its own fence
	reads   bool      // it differs from another one in reads only
	guarded bool      // its table is guarded and stamped
}

// servers are the processes that one run of this program has started.
type servers struct {
	dir        string
	bin        string // of initdb and postgres
	user       *syscall.Credential
	version    string // of Postgres
	pgPort     string
	contenders []*contender
	running    []*exec.Cmd
}

// startServers starts Postgres and everything that contends.
func startServers(ctx context.Context, p *plan) (_ *servers, err error) {
	s := &servers{}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if s.dir, err = os.MkdirTemp("", "fencepost-bench-"); err != nil {
		return nil, err
	}
	if err := errors.Join(os.Chmod(s.dir, 0o755), s.findUser(), s.findPostgres(ctx)); err != nil {
		return nil, err
	}
	if err := s.startPostgres(ctx); err != nil {
		return nil, err
	}
	s.add(p, &contender{name: "direct", port: s.pgPort})
	for _, start := range []func(context.Context, *plan) error{s.startHAProxy, s.startPgBouncer, s.startFencepost} {
		if err := start(ctx, p); err != nil {
			return nil, err
		}
	}
	if len(s.contenders) == 0 {
		return nil, fmt.Errorf("no contender is named %s", strings.Join(p.only, " or "))
	}
	return s, nil
}

// add has a contender take part, unless others are wanted only.
func (s *servers) add(p *plan, c *contender) {
	if len(p.only) == 0 || slices.Contains(p.only, c.name) {
		s.contenders = append(s.contenders, c)
	}
}

// stop ends what was started, the last first, and waits for it.
func (s *servers) stop() {
	for _, cmd := range slices.Backward(s.running) {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		_ = cmd.Wait()                       // by that signal
	}
	if err := os.RemoveAll(s.dir); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
}

// findUser finds a user without privileges if this is root: Postgres and PgBouncer do not run as root.
func (s *servers) findUser() error {
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return fmt.Errorf("find a user for PostgreSQL: %w", err)
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	s.user = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return errors.Join(uidErr, gidErr, os.Chown(s.dir, uid, gid))
}

func (s *servers) findPostgres(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "scripts/setup.sh", "postgres-bin").Output()
	s.bin = strings.TrimSpace(string(out))
	if err != nil || s.bin == "" {
		return errors.Join(errors.New("PostgreSQL was not found: run make setup"), err)
	}
	return nil
}

// start starts a program, whose log is in the directory of s.
func (s *servers) start(as *syscall.Credential, env []string, path string, args ...string) (*exec.Cmd, error) {
	log, err := os.Create(filepath.Join(s.dir, filepath.Base(path)+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.running = append(s.running, cmd)
	return cmd, nil
}

// await waits until a query is answered at a port.
func (s *servers) await(ctx context.Context, port, log string) error {
	err := retry(ctx, func() error { return s.exec(ctx, role, port, "SELECT 1") })
	if err == nil {
		return nil
	}
	text, _ := os.ReadFile(filepath.Join(s.dir, log+".log")) // as much as there is
	return fmt.Errorf("wait for the server at port %s: %w\n%s", port, err, text)
}

// exec runs statements.
func (s *servers) exec(ctx context.Context, as, port string, statements ...string) error {
	db := role
	if as != role {
		db = "postgres"
	}
	return s.execIn(ctx, as, port, db, statements...)
}

func (s *servers) execIn(ctx context.Context, as, port, db string, statements ...string) error {
	conn, err := pgx.Connect(ctx, fmt.Sprintf("postgres://%s@127.0.0.1:%s/%s?sslmode=disable", as, port, db))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// freePort returns a port that nobody has now.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// retry calls try until it succeeds, for at most a minute.
func retry(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}
