package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/child"
)

// role is who runs the loads, and also the name of the database and of the resource.
const role = "bench"

// most is how many connections Postgres allows: each PgBouncer keeps those that it has opened.
const most = 500

// loopback is where all servers listen.
const loopback = "127.0.0.1"

// contender is one way to reach Postgres.
type contender struct {
	name    string
	over    route
	at      place
	process *process // what is in between; nil if nothing is
	options string   // of libpq
	own     bool     // the application has its own fence
	guarded bool     // its table is guarded and stamped
}

// process is a program that was started, and that can be started again.
type process struct {
	name string // of its log
	as   *syscall.Credential
	env  []string
	argv []string
	cmd  *exec.Cmd
}

// servers are the processes that one run of this program has started.
type servers struct {
	dir        string
	bin        string // of initdb and postgres
	user       *syscall.Credential
	version    string // of Postgres
	pgPort     string
	contenders []*contender
	running    []*process
	stubs      map[string]*stub // by the name of the route
}

// startServers starts Postgres and everything that contends.
func startServers(ctx context.Context, p *plan) (_ *servers, err error) {
	s := &servers{stubs: map[string]*stub{}}
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
	if err := s.writeCertificate(); err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	if err := s.startPostgres(ctx); err != nil {
		return nil, err
	}
	if err := s.migrate(ctx, p); err != nil {
		return nil, err
	}
	for _, r := range p.routes() {
		for _, start := range []func(context.Context, *plan, route) error{s.startServer, s.startHAProxy, s.startPgBouncer, s.startFencepost} {
			if err := start(ctx, p, r); err != nil {
				return nil, err
			}
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
	for _, one := range slices.Backward(s.running) {
		one.stop()
	}
	for _, one := range s.stubs {
		one.stop()
	}
	if err := os.RemoveAll(s.dir); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
}

// stop ends the program, and waits for it.
func (p *process) stop() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(os.Interrupt) // it may have ended
	_ = p.cmd.Wait()                       // by that signal
	p.cmd = nil
}

// findUser finds a user without privileges if this is root: Postgres and PgBouncer do not run as root.
func (s *servers) findUser() (err error) {
	if s.user, err = child.Unprivileged(); err != nil || s.user == nil {
		return err
	}
	return os.Chown(s.dir, int(s.user.Uid), int(s.user.Gid))
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
func (s *servers) start(one *process) error {
	log, err := os.Create(s.log(one.name))
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(one.argv[0], one.argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), one.env...), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: one.as, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", one.name, err)
	}
	if one.cmd = cmd; !slices.Contains(s.running, one) {
		s.running = append(s.running, one)
	}
	return nil
}

// restart ends the proxy of a contender, and starts it again.
func (s *servers) restart(ctx context.Context, by *contender) error {
	by.process.stop()
	if err := s.start(by.process); err != nil {
		return err
	}
	return s.await(ctx, by)
}

func (s *servers) log(name string) string { return filepath.Join(s.dir, name+".log") }

// await waits until a contender lets a client in. What it has to prepare for the first one, such as a grant, is
// done then.
func (s *servers) await(ctx context.Context, by *contender) error {
	err := retry(ctx, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, by.dsn())
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	if err == nil {
		return nil
	}
	text, _ := os.ReadFile(s.log(by.process.name)) // as much as there is
	return fmt.Errorf("wait for %s at %s: %w\n%s", by.process.name, by.at.address(), err, text)
}

// dsn is how a client reaches the contender.
func (by *contender) dsn() string {
	dsn := fmt.Sprintf("host=%s port=%s user=%s dbname=%s sslmode=%s", by.at.host, by.at.port, role, role, by.over.sslmode())
	if by.options == "" {
		return dsn // PgBouncer refuses even empty options
	}
	return dsn + " options='" + by.options + "'"
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
func retry(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := try(ctx)
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
