package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/child"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// example is a program in examples, with the environment that it needs.
type example struct{ command, env []string }

// exampleWorkers are the programs that have Fencepost elect the leader.
var exampleWorkers = map[string]example{
	"psql":    {[]string{"sh", "worker.sh"}, nil},
	"psycopg": {[]string{"/usr/bin/python3", "python/worker.py"}, []string{"PYTHONDONTWRITEBYTECODE=1"}},
	// The packages that scripts/drivers.sh installs, here and below.
	"pgjdbc":  {[]string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", "/usr/share/java/postgresql.jar", "java/Worker.java"}, nil},
	"node pg": {[]string{"node", "node/worker.js"}, []string{"NODE_PATH=../.cache/drivers/node/node_modules"}},
}

// exampleWorker is a program in examples as a process group, with its output.
type exampleWorker struct {
	name string
	cmd  *exec.Cmd
	mu   struct {
		sync.Mutex
		text strings.Builder
	}
}

func (w *exampleWorker) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.text.Write(p)
}

// wrote returns how many rows the worker reported as written.
func (w *exampleWorker) wrote() int { return strings.Count(w.output(), w.name+" wrote row") }

func (w *exampleWorker) output() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.text.String()
}

func (w *exampleWorker) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(-w.cmd.Process.Pid, s); err != nil {
		t.Fatalf("signal %s: %v", w.name, err)
	}
}

func startExampleWorker(t *testing.T, r *servicetest.Running, db, program, name string) *exampleWorker {
	t.Helper()
	return startExample(t, r, db, name, exampleWorkers[program])
}

func startExample(t *testing.T, r *servicetest.Running, db, name string, example example) *exampleWorker {
	t.Helper()
	host, port, err := net.SplitHostPort(r.Address())
	if err != nil {
		t.Fatal(err)
	}
	w := &exampleWorker{name: name, cmd: exec.Command(example.command[0], example.command[1:]...)}
	w.cmd.Dir = filepath.Join("..", "..", "examples")
	// Nobody listens at the first host, as at a proxy that is down.
	w.cmd.Env = append(slices.Concat(os.Environ(), example.env), "WORKER="+name, "PGHOST=127.0.0.2,"+host, "PGPORT="+port, "PGUSER="+pgtest.App, "PGDATABASE="+db)
	w.start(t)
	return w
}

// start starts the process group, which is killed at the end of the test.
func (w *exampleWorker) start(t *testing.T) {
	t.Helper()
	w.cmd.Stdout, w.cmd.Stderr = w, w
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	child.EndWithParent(w.cmd, syscall.SIGKILL)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL) // kills psql too
		_ = w.cmd.Wait()                                      // fails because it was killed
	})
}

// TestExampleWorkersTakeOver does what docker-compose.yml suggests: it freezes the
// active worker, and thaws it after the other one has worked. Then it does the same to the
// other one, which lets the first one lead again.
func TestExampleWorkersTakeOver(t *testing.T) {
	t.Parallel()
	for program := range exampleWorkers {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			testExampleWorkers(t, program)
		})
	}
}

func testExampleWorkers(t *testing.T, program string) {
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE charges (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, worker text NOT NULL, at timestamptz NOT NULL DEFAULT now())")
	r := servicetest.Start(t, s, func(c *config.Config) {
		c.Lease.WorkerTimeout, c.Lease.Grace = config.Duration(8*time.Second), config.Duration(200*time.Millisecond)
	})
	first := startExampleWorker(t, r, db, program, "worker-a")
	servicetest.Eventually(t, "the first worker to write", func() bool { return first.wrote() > 0 })
	second := startExampleWorker(t, r, db, program, "worker-b")
	servicetest.Eventually(t, "the second worker to wait", func() bool { return strings.Contains(rolesOf(t, r, db), "worker-b:follower") })
	if second.wrote() > 0 {
		t.Errorf("the second worker wrote while the first one led:\n%s", second.output())
	}
	first.signal(t, syscall.SIGSTOP)
	servicetest.Eventually(t, "the second worker to take over", func() bool { return second.wrote() > 0 })
	// Do not rely on its output: it may have been frozen before it reported a row.
	admin := s.Connect(t, pgtest.Superuser, db)
	rows := func() (n int) {
		t.Helper()
		if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM charges WHERE worker = 'worker-a'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := rows()
	first.signal(t, syscall.SIGCONT)
	servicetest.Eventually(t, "the first worker to be refused", func() bool { return strings.Contains(first.output(), "ZF001") })
	if rows() != before {
		t.Errorf("the first worker wrote after it was superseded:\n%s", first.output())
	}
	servicetest.Eventually(t, "the first worker to stand by", func() bool {
		return strings.Count(first.output(), "connecting, and waiting to lead") >= 2
	})
	second.signal(t, syscall.SIGSTOP)
	servicetest.Eventually(t, "the first worker to write again", func() bool { return rows() > before })
}

// rolesOf lists "name:role" of the workers of the resource billing. The name is the
// part of the worker's id before the first colon.
func rolesOf(t *testing.T, r *servicetest.Running, db string) string {
	t.Helper()
	var b strings.Builder
	for _, v := range r.Resources() {
		for _, c := range v.Candidacies {
			name, _, _ := strings.Cut(c.Worker, ":")
			if v.Database == db {
				fmt.Fprintf(&b, "%s:%s ", name, c.Status.Role)
			}
		}
	}
	return b.String()
}

// ownElector is the application's own elector. expire ends the term of a holder that is frozen, as a failure
// detector would.
type ownElector struct {
	example
	expire func()
}

// ownElectors start the electors of the examples for one database.
var ownElectors = map[string]func(t *testing.T, s *pgtest.Server, db string) ownElector{
	"advisory lock": func(t *testing.T, s *pgtest.Server, db string) ownElector {
		s.Exec(t, pgtest.App, db, "CREATE TABLE leadership_term (resource text PRIMARY KEY, term bigint NOT NULL)")
		return ownElector{
			example{[]string{"/usr/bin/python3", "python/elect_postgres.py"}, []string{"PYTHONDONTWRITEBYTECODE=1", "ELECTOR=" + s.DSN(pgtest.App, db)}},
			func() {
				s.Exec(t, pgtest.Superuser, db, "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
			},
		}
	},
	"Redis": func(t *testing.T, _ *pgtest.Server, _ string) ownElector {
		dir, err := os.MkdirTemp("", "redis") // the directory of the test may be too deep for a socket
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		path := filepath.Join(dir, "s")
		cmd := exec.Command("redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", dir)
		if cmd.Err != nil {
			t.Fatalf("find Redis (scripts/setup.sh redis installs it): %v", cmd.Err)
		}
		child.EndWithParent(cmd, syscall.SIGKILL)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // fails because it was killed
		})
		servicetest.Eventually(t, "Redis to listen", func() bool { _, err := os.Stat(path); return err == nil })
		return ownElector{
			example{[]string{"/usr/bin/python3", "python/elect_redis.py"}, []string{"PYTHONDONTWRITEBYTECODE=1", "REDIS=unix://" + path}},
			func() {}, // the lease expires by itself
		}
	},
}

// askedFirst is what a worker says that was frozen between a write and the question whether it is
// still elected, so that it wakes up with no write at hand.
const askedFirst = "no longer elected"

// TestExampleElectorsAreFenced: a leader is frozen, its elector elects another one, and the
// first one wakes up with a write at hand.
func TestExampleElectorsAreFenced(t *testing.T) {
	t.Parallel()
	for name, open := range ownElectors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := pgtest.Shared(t)
			db := s.Database(t)
			s.Exec(t, pgtest.App, db, "CREATE TABLE charges (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, worker text NOT NULL, at timestamptz NOT NULL DEFAULT now())")
			r := servicetest.Start(t, s, func(c *config.Config) {
				c.Lease.Grace = config.Duration(200 * time.Millisecond)
				c.Resources = map[string]config.Resource{"billing": {Election: "token"}}
			})
			own := open(t, s, db)
			first := startExample(t, r, db, "worker-a", own.example)
			servicetest.Eventually(t, "the first worker to write", func() bool { return first.wrote() > 0 })
			second := startExample(t, r, db, "worker-b", own.example)
			servicetest.Eventually(t, "the second worker to wait", func() bool { return strings.Contains(second.output(), "waiting to be elected") })
			admin := s.Connect(t, pgtest.Superuser, db)
			rows := func(w *exampleWorker) (n int) {
				t.Helper()
				if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM charges WHERE worker = $1", w.name).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			var before int
			for refused := false; !refused; {
				led := second.wrote()
				first.signal(t, syscall.SIGSTOP)
				own.expire()
				servicetest.Eventually(t, "the second worker to take over", func() bool { return second.wrote() > led })
				before = rows(first)
				asked := strings.Count(first.output(), askedFirst)
				first.signal(t, syscall.SIGCONT)
				servicetest.Eventually(t, "the first worker to be refused, or to ask its elector first", func() bool {
					refused = strings.Contains(first.output(), "ZF001")
					return refused || strings.Count(first.output(), askedFirst) > asked
				})
				if rows(first) != before {
					t.Errorf("the first worker wrote after another one was elected:\n%s", first.output())
				}
				if !refused {
					first, second = second, first
				}
			}
			second.signal(t, syscall.SIGSTOP)
			own.expire()
			servicetest.Eventually(t, "the first worker to be elected again, and to write", func() bool { return rows(first) > before })
		})
	}
}
