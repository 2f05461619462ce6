package pgtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/migrations"
)

// initdbArguments are the arguments for every server; the data directory follows.
var initdbArguments = []string{"--no-sync", "-A", "trust", "-U", Superuser, "-E", "UTF8", "--locale=C", "-D"}

// imageAge is how long an image is kept that no one uses.
const imageAge = 24 * time.Hour

// fill copies an image of a data directory: the roles named in the package's comment and the migrated
// template database take far longer to create than to copy. Servers of one image have the same
// system identifier.
func (s *Server) fill() error {
	image := imageOf(s.found)
	now := time.Now()
	if os.Chtimes(image, now, now) == nil {
		return s.copyData(s.data(), image, s.as)
	}
	first := newServer([]Option{WithBinaries(s.found)})
	defer first.remove()
	if err := first.initialize(); err != nil {
		return err
	}
	if err := keepImage(image, first); err != nil {
		return err
	}
	return s.copyData(s.data(), first.data(), s.as)
}

// initialize creates what an image contains, and stops the server.
func (s *Server) initialize() error {
	if err := s.place(); err != nil {
		return err
	}
	if out, err := s.command("initdb", append(initdbArguments, s.data())...).CombinedOutput(); err != nil {
		return fmt.Errorf("run initdb: %w: %s", err, out)
	}
	if err := s.configure(); err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	if err := s.makeRoles(); err != nil {
		return err
	}
	if err := s.makeTemplate(); err != nil {
		return fmt.Errorf("create the template database: %w", err)
	}
	return s.end(Fast)
}

// makeRoles creates the roles named in the package's comment.
func (s *Server) makeRoles() error {
	err := s.exec(Superuser, "postgres",
		"CREATE ROLE "+Control+" LOGIN",
		"GRANT pg_signal_backend, pg_read_all_stats TO "+Control,
		"CREATE ROLE "+App+" LOGIN",
		"SET password_encryption = 'md5'",
		"CREATE ROLE md5_user LOGIN PASSWORD '"+Password+"'",
		"SET password_encryption = 'scram-sha-256'",
		"CREATE ROLE cleartext_user LOGIN PASSWORD '"+Password+"'",
		"CREATE ROLE scram_user LOGIN PASSWORD '"+Password+"'",
	)
	if err != nil {
		return err
	}
	return s.exec(Superuser, "template1", "GRANT ALL ON SCHEMA public TO "+App)
}

// makeTemplate creates the migrated template database.
func (s *Server) makeTemplate() error {
	// Fencepost looks for fences in each database that is no template. A connection of its to this
	// one would keep another test from copying it.
	if err := s.exec(Superuser, "postgres", "CREATE DATABASE "+Template+" IS_TEMPLATE true", "GRANT CREATE ON DATABASE "+Template+" TO "+Control); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN(Control, Template))
	if err != nil {
		return fmt.Errorf("connect as %s: %w", Control, err)
	}
	defer conn.Close(ctx)
	if _, err := migrations.Up(ctx, conn, migrations.Options{Control: Control}); err != nil {
		return err
	}
	// Transcripts name the first fence by its number.
	if _, err := conn.Exec(ctx, "ALTER TABLE fencepost.fence ALTER COLUMN id RESTART WITH 1"); err != nil {
		return fmt.Errorf("number the template's fences from 1: %w", err)
	}
	return nil
}

// imageOf returns where the image of these binaries, the migrations and this package is kept. It
// returns "" if there is no place to keep it.
func imageOf(bin string) string {
	root, err := RepositoryRoot()
	if err != nil {
		return ""
	}
	info, err := os.Stat(filepath.Join(bin, "postgres"))
	if err != nil {
		return ""
	}
	of := sha256.New()
	fmt.Fprintln(of, strings.TrimPrefix(bin, root), info.Size(), info.ModTime())
	for _, dir := range []string{"migrations", "internal/pgtest"} {
		files, _ := filepath.Glob(filepath.Join(root, dir, "*")) // the pattern is a valid one
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return ""
			}
			fmt.Fprintln(of, len(text))
			of.Write(text)
		}
	}
	return filepath.Join(root, ".cache", "initdb", fmt.Sprintf("%x", of.Sum(nil))[:16])
}

// keepImage creates the image of a server that was stopped, unless another process was faster, and
// removes those that no one has used for imageAge.
func keepImage(image string, s *Server) error {
	if image == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(image), 0o755); err != nil {
		return fmt.Errorf("create a directory for data directories: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(image), "new-")
	if err != nil {
		return fmt.Errorf("create a directory for a data directory: %w", err)
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "data")
	if err := s.copyData(made, s.data(), nil); err != nil {
		return err
	}
	if err := os.Rename(made, image); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("keep the data directory: %w", err)
	}
	others, _ := filepath.Glob(filepath.Join(filepath.Dir(image), "*")) // the pattern is a valid one
	for _, other := range others {
		if info, err := os.Stat(other); err == nil && time.Since(info.ModTime()) > imageAge {
			_ = os.RemoveAll(other) // what cannot be removed takes space, and no more
		}
	}
	return nil
}

// copyData copies a data directory and makes an account its owner.
func (s *Server) copyData(to, from string, as *syscall.Credential) error {
	if out, err := exec.Command("cp", "-r", "--preserve=mode", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the data directory: %w: %s", err, out)
	}
	if as == nil {
		return nil
	}
	return filepath.WalkDir(to, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(as.Uid), int(as.Gid))
	})
}
