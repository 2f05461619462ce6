package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

const (
	passedOn    = "sessions were passed on to the new process"
	oldHasEnded = "the process before this one has ended"
	clientTaken = "client taken over"
)

// workers are clients that work without a pause, each on one connection. Each error fails the test.
type workers struct {
	mode pgx.QueryExecMode
	rows atomic.Int64 // each has a number of its own
	stop func()
}

// work starts three workers whose statements are sent in that mode.
func (h *cluster) work(dsn string, mode pgx.QueryExecMode) *workers {
	h.t.Helper()
	return h.workMany(3, dsn, mode)
}

// workMany starts n such workers.
func (h *cluster) workMany(n int, dsn string, mode pgx.QueryExecMode) *workers {
	h.t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		h.t.Fatal(err)
	}
	cfg.DefaultQueryExecMode = mode
	w := &workers{mode: mode}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range n {
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err != nil {
			h.t.Fatal(err)
		}
		wg.Go(func() {
			defer conn.Close(context.Background())
			for ctx.Err() == nil {
				if err := w.once(conn); err != nil {
					h.t.Errorf("%s: after %d rows: %v", mode, w.rows.Load(), err)
					return
				}
			}
		})
	}
	w.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	h.t.Cleanup(w.stop)
	return w
}

// once writes a row in a transaction, and reads it outside of one.
func (w *workers) once(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	what := fmt.Sprint(w.mode, " ", w.rows.Add(1))
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO work VALUES ($1)", what)
		return err
	})
	var n int
	if err == nil {
		err = conn.QueryRow(ctx, "SELECT count(*) FROM work WHERE what = $1", what).Scan(&n)
	}
	if err == nil && n != 1 {
		err = fmt.Errorf("there are %d rows %q", n, what)
	}
	return err
}

// more waits until there are more rows.
func (w *workers) more(t testing.TB) {
	t.Helper()
	before := w.rows.Load()
	process.Eventually(t, process.Patience, "more rows", func() bool { return t.Failed() || w.rows.Load() >= before+10 })
}

// TestAnUpgradePassesSessionsOn: clients of sessions that are not fenced see nothing of two upgrades, one after the
// other: those that work, by simple and by prepared statements, over TCP and a Unix socket, one that listens, and those
// that are in a transaction or a COPY.
func TestAnUpgradePassesSessionsOn(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with("UNFENCED=allow", "DRAIN_TIMEOUT=10m", "LOG_CONNECTIONS=true"))
	path := socketIn(t)
	p := h.proxy("LISTEN=127.0.0.1:0, " + path)
	dsn, tcp := p.DSN(pgtest.App, h.db), p.Address
	p.Address = path
	local := p.DSN(pgtest.App, h.db)
	p.Address = tcp
	simple, extended := h.work(dsn, pgx.QueryExecModeSimpleProtocol), h.work(local, pgx.QueryExecModeCacheStatement)
	more := func() { t.Helper(); simple.more(t); extended.more(t) }
	prepared, listener, open, copying := h.mustPlain(p), h.mustPlain(p), h.mustPlain(p), h.mustPlain(p)
	prepared.must("PREPARE one AS SELECT 1")
	listener.must("LISTEN news")
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	for n := 1; n <= 2; n++ {
		open.must("BEGIN", "INSERT INTO work VALUES ('in a transaction')")
		data, feed := io.Pipe()
		copied := make(chan error, 1)
		go func() {
			_, err := copying.PgConn().CopyFrom(ctx, data, "COPY work FROM STDIN")
			copied <- err
		}()
		fmt.Fprintln(feed, "copied before")
		process.Eventually(t, process.Patience, "the COPY", func() bool {
			return ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_progress_copy WHERE datname = current_database())")
		})
		more()
		p.Upgrade(t)
		process.Eventually(t, process.Patience, "the idle sessions to be passed on", func() bool { return len(p.Lines(clientTaken)) == n*10-2 })
		prepared.must("EXECUTE one", "NOTIFY news")
		if _, err := listener.WaitForNotification(ctx); err != nil {
			t.Errorf("the listener: %v", err)
		}
		if ended := len(p.Lines(oldHasEnded)); ended != n-1 {
			t.Errorf("%d processes have ended in upgrade %d, with a transaction and a COPY", ended, n)
		}
		fmt.Fprintln(feed, "copied after")
		_ = feed.Close()
		if err := <-copied; err != nil {
			t.Errorf("the COPY: %v", err)
		}
		open.must("INSERT INTO work VALUES ('in a transaction')", "COMMIT")
		process.Eventually(t, process.Patience, oldHasEnded, func() bool { return len(p.Lines(oldHasEnded)) == n })
		more()
		open.must("SELECT")
		copying.must("SELECT")
	}
	simple.stop()
	extended.stop()
	if code := awaitEnd(t, p); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if handed := p.Lines(passedOn); len(handed) != 2 || handed[0].Number("sessions") != 10 || handed[1].Number("sessions") != 10 {
		t.Errorf("the log says %v", handed)
	}
	count := func(what string) int64 { return ask[int64](h, "SELECT count(*) FROM work WHERE what = '"+what+"'") }
	if count("in a transaction") != 4 || count("copied before") != 2 || count("copied after") != 2 {
		t.Errorf("the table has %v", h.works())
	}
	if n := ask[int64](h, "SELECT count(DISTINCT what) FROM work WHERE what ~ '[0-9]$'"); n != simple.rows.Load()+extended.rows.Load() {
		t.Errorf("%d rows of the workers, want %d and %d", n, simple.rows.Load(), extended.rows.Load())
	}
	process.Eventually(t, process.Patience, "the newest process to list those that are left", func() bool {
		_, body := p.Get(t, "/v1/connections")
		return strings.Count(body, `"role": "unfenced"`) == 4
	})
}

// TestCancelOfASessionThatWasPassedOn: a cancel request with the key that the old process has given works at the new one.
func TestCancelOfASessionThatWasPassedOn(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long, "UNFENCED=allow"))
	p := h.proxy()
	c := h.mustPlain(p)
	p.Upgrade(t)
	awaitEnd(t, p)
	running := make(chan error, 1)
	go func() { running <- c.exec("SELECT pg_sleep(600)") }()
	process.Eventually(t, process.Patience, "the statement to run", func() bool {
		return ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep')")
	})
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	if err := c.PgConn().CancelRequest(ctx); err != nil {
		t.Error(err)
	}
	if err := <-running; stateOf(err) != "57014" {
		t.Errorf("the statement ends with %v", err)
	}
}

// freeze stops a process, and returns when none of its threads runs any more. thaw lets it go on.
func freeze(t testing.TB, pid int) (thaw func()) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	process.Eventually(t, process.Patience, "the process to stop", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		return err == nil && !slices.ContainsFunc(threads, func(path string) bool {
			text, err := os.ReadFile(path)
			_, state, _ := bytes.Cut(text, []byte(") "))
			return err == nil && !bytes.HasPrefix(state, []byte("T"))
		})
	})
	return sync.OnceFunc(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
}

// TestAFrozenProcessTakesNoSessions: the old one passes them for a moment only, and then ends the sessions that are left.
func TestAFrozenProcessTakesNoSessions(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long, "UNFENCED=allow", "LOG_CONNECTIONS=true"))
	p := h.proxy()
	open := h.mustPlain(p)
	open.must("BEGIN")
	idle := h.mustPlain(p)
	pid := p.Upgrade(t)
	p.Await(t, clientTaken)
	idle.must("SELECT")
	defer freeze(t, pid)()
	open.must("COMMIT")
	var fatal *pgconn.PgError
	if err := open.exec("SELECT 1"); !errors.As(err, &fatal) || fatal.Code != "57P01" {
		t.Errorf("a session that the new process does not take ends with %v", err)
	}
	if code := awaitEnd(t, p); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
