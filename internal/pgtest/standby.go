package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Standby starts a hot standby of the server, and ends it when the test ends. It streams from
// the server under the name "standby", asynchronously unless the server's
// synchronous_standby_names says otherwise.
func (s *Server) Standby(t testing.TB, opts ...Option) *Server {
	t.Helper()
	standby := newServer(append([]Option{WithBinaries(s.found)}, opts...))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the standby's log:\n%s", standby.logTail())
		}
		standby.remove()
	})
	if err := standby.follow(s); err != nil {
		t.Fatalf("start a standby: %v", err)
	}
	return standby
}

// follow creates the data directory as a copy of the primary's, and starts the server.
func (s *Server) follow(primary *Server) error {
	if err := s.place(); err != nil {
		return err
	}
	if err := s.backUp(primary); err != nil {
		return fmt.Errorf("back up the primary: %w", err)
	}
	if err := s.configure(); err != nil {
		return err
	}
	return s.start()
}

// backUp copies the data directory of a running primary as pg_basebackup does, which not every
// installation has, and leaves a standby's configuration there.
func (s *Server) backUp(primary *Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, primary.DSN(Superuser, "postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SELECT pg_backup_start('standby', true)"); err != nil {
		return err
	}
	if err := s.copyRunning(primary.data(), "", notOfAStandby...); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, "SELECT labelfile FROM pg_backup_stop(false)").Scan(&label); err != nil {
		return err
	}
	if err := s.copyRunning(primary.data(), "pg_wal"); err != nil { // what was written during the copy
		return err
	}
	follows := fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=%s application_name=standby'\n", primary.Port(), Superuser)
	for name, text := range map[string]string{"backup_label": label, "standby.signal": "", "postgresql.auto.conf": follows} {
		if err := s.append(filepath.Join(s.data(), name), text); err != nil {
			return err
		}
	}
	return nil
}

// notOfAStandby names the process of a running server, and directories whose files mean something to it
// alone. The write-ahead log is copied later.
var notOfAStandby = []string{"postmaster.pid", "postmaster.opts", "pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans"}

// copyRunning copies a directory of a running server's data directory. It leaves out the files that
// are, or are below, one of without, and those that vanish meanwhile.
func (s *Server) copyRunning(from, dir string, without ...string) error {
	return filepath.WalkDir(filepath.Join(from, dir), func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		to := filepath.Join(s.data(), name)
		if e.IsDir() {
			return errors.Join(os.MkdirAll(to, 0o700), s.own(to))
		}
		if top, _, _ := strings.Cut(name, "/"); slices.Contains(without, top) {
			return nil
		}
		text, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
		return s.append(to, string(text))
	})
}

// append adds text to a file of the server, which it creates if there is none.
func (s *Server) append(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close(), s.own(path))
}

// Promote makes a standby a primary, and waits until it is one.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	s.Exec(t, Superuser, "postgres", "SELECT pg_promote()")
}
