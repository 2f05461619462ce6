// Package scratch starts what commands need that show Fencepost on real servers and discard everything
// afterwards: a throwaway PostgreSQL, and other programs as children.
package scratch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/child"
)

// Superuser is the role that owns a throwaway server.
const Superuser = "postgres"

// Postgres is a throwaway server with one password for all its roles.
type Postgres struct {
	proc     *Process
	Address  string // host:port
	Password string // random; of the Superuser, and of whatever roles the caller creates
	Version  string // such as 15.14
}

// StartPostgres creates a cluster in dir, which other users must be able to enter, and starts its server
// on a free port of the loopback interface. bin is the directory of initdb and postgres; "" searches for
// one. Its owner calls Stop. The variables that libpq and pgx read, such as PGSSLMODE, are for the
// operator's own servers: they are removed from this process, so that its children have none either.
func StartPostgres(ctx context.Context, dir, bin string) (*Postgres, error) {
	bin, err := findPostgres(bin)
	if err != nil {
		return nil, err
	}
	if err := forgetServers(); err != nil {
		return nil, err
	}
	cred, err := child.Unprivileged()
	if err != nil {
		return nil, err
	}
	home := filepath.Join(dir, "postgres")
	if err := os.Mkdir(home, 0o700); err != nil {
		return nil, fmt.Errorf("create a directory for the server: %w", err)
	}
	pg := &Postgres{Password: rand.Text()}
	secret := filepath.Join(home, "password")
	if err := os.WriteFile(secret, []byte(pg.Password+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("write the server's password: %w", err)
	}
	if cred != nil {
		for _, path := range []string{home, secret} {
			if err := os.Chown(path, int(cred.Uid), int(cred.Gid)); err != nil {
				return nil, fmt.Errorf("change the owner of the directory to the server's user: %w", err)
			}
		}
	}
	data := filepath.Join(home, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "--pgdata", data, "--username", Superuser,
		"--auth", "scram-sha-256", "--pwfile", secret, "--encoding", "UTF8", "--no-locale", "--no-sync")
	initdb.Dir, initdb.SysProcAttr = home, &syscall.SysProcAttr{Credential: cred}
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("run initdb: %w\n%s", err, out)
	}
	if err := pg.start(ctx, bin, home, data, cred); err != nil {
		return nil, err
	}
	return pg, nil
}

// start starts the server and waits until it responds.
func (pg *Postgres) start(ctx context.Context, bin, home, data string, cred *syscall.Credential) error {
	var err error
	if pg.Address, err = FreeAddress(); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(filepath.Dir(home), "postgres.log"))
	if err != nil {
		return fmt.Errorf("create the server's log: %w", err)
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-h", "127.0.0.1", "-p", Port(pg.Address), "-k", "", "-F")
	cmd.Dir, cmd.Stdout, cmd.Stderr = home, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	if pg.proc, err = Start("PostgreSQL", cmd); err != nil {
		return err
	}
	err = WaitFor(ctx, pg.proc, 30*time.Second, func() error {
		conn, err := pgx.Connect(ctx, pg.DSN(Superuser, "postgres"))
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		return conn.QueryRow(ctx, "show server_version").Scan(&pg.Version)
	})
	if err != nil {
		return errors.Join(fmt.Errorf("wait for PostgreSQL: %w\n%s", err, Tail(log.Name(), 10)), pg.proc.Stop(syscall.SIGINT))
	}
	pg.Version, _, _ = strings.Cut(pg.Version, " ")
	return nil
}

// DSN returns a connection URL for a role, directly to the server.
func (pg *Postgres) DSN(role, db string) string { return DSN(pg.Address, role, pg.Password, db, nil) }

// DSN returns a connection URL.
func DSN(address, role, password, db string, params url.Values) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(role, password), Host: address, Path: "/" + db, RawQuery: params.Encode()}
	return u.String()
}

// forgetServers removes the variables of libpq from this process.
func forgetServers() error {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "PG") {
			if err := os.Unsetenv(name); err != nil {
				return fmt.Errorf("remove the variable %s: %w", name, err)
			}
		}
	}
	return nil
}

// Stop ends the server at once; its data is discarded.
func (pg *Postgres) Stop() error { return pg.proc.Stop(syscall.SIGINT) }

// findPostgres returns a directory with the programs initdb and postgres.
func findPostgres(bin string) (string, error) {
	var dirs []string
	if bin != "" {
		dirs = []string{bin}
	} else {
		if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
			dirs = append(dirs, strings.TrimSpace(string(out)))
		}
		installed, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well formed
		sort.Slice(installed, func(i, j int) bool { return major(installed[i]) > major(installed[j]) })
		dirs = append(dirs, installed...)
		if path, err := exec.LookPath("initdb"); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	for _, dir := range dirs {
		if executable(filepath.Join(dir, "initdb")) && executable(filepath.Join(dir, "postgres")) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("PostgreSQL server programs (initdb, postgres) not found in %v: install them (apt-get install postgresql, or make setup), or pass their directory with --postgres", dirs)
}

// major returns the version in /usr/lib/postgresql/15/bin.
func major(dir string) int {
	n, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	if err != nil {
		return 0
	}
	return n
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// FreeAddress returns a currently unused address of the loopback interface.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// Port returns the port of an address returned by FreeAddress.
func Port(address string) string {
	_, p, err := net.SplitHostPort(address)
	if err != nil {
		panic(err)
	}
	return p
}

// WaitFor calls try until it succeeds. It gives up with the last error when the process
// ends, the time has passed or ctx ends.
func WaitFor(ctx context.Context, p *Process, within time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return fmt.Errorf("%s has ended: %v (last: %w)", p.Name, p.Err(), err)
		case <-ctx.Done():
			return fmt.Errorf("not ready after %s: %w", within, err)
		case <-tick.C:
		}
	}
}
