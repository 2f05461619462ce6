package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fencepost/fencepost/internal/child"
)

func (s *Server) data() string    { return filepath.Join(s.dir, "data") }
func (s *Server) logFile() string { return filepath.Join(s.dir, "server.log") }

// place finds the binaries and creates the server's directory.
func (s *Server) place() error {
	var err error
	if s.bin == "" {
		if s.bin, err = defaultBinaries(); err != nil {
			return err
		}
	}
	if s.as, err = child.Unprivileged(); err != nil {
		return err
	}
	s.found = s.bin
	parent := scratch()
	if s.settings["fsync"] == "on" {
		parent = "" // on disk
	}
	if s.dir, err = os.MkdirTemp(parent, fmt.Sprintf("%s%d-", dirPrefix, os.Getpid())); err != nil {
		return fmt.Errorf("create a directory for the server: %w", err)
	}
	if err := s.own(s.dir); err != nil {
		return err
	}
	return s.reach()
}

// own makes the server's user the owner of a file.
func (s *Server) own(path string) error {
	if s.as == nil {
		return nil
	}
	if err := os.Chown(path, int(s.as.Uid), int(s.as.Gid)); err != nil {
		return fmt.Errorf("change the owner of %s to the server's user: %w", path, err)
	}
	return nil
}

// configure writes the additions to postgresql.conf, and pg_hba.conf.
func (s *Server) configure() error {
	conf, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open postgresql.conf: %w", err)
	}
	defer conf.Close()
	for name, value := range s.settings {
		if _, err := fmt.Fprintf(conf, "%s = '%s'\n", name, strings.ReplaceAll(value, "'", "''")); err != nil {
			return fmt.Errorf("write postgresql.conf: %w", err)
		}
	}
	if _, err := fmt.Fprintf(conf, "unix_socket_directories = '%s'\n", s.dir); err != nil {
		return fmt.Errorf("write postgresql.conf: %w", err)
	}
	hba := `local all all trust
host all cleartext_user 127.0.0.1/32 password
host all md5_user 127.0.0.1/32 md5
host all scram_user 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
local replication all trust
host replication all 127.0.0.1/32 trust
`
	if s.hba != nil {
		hba = s.hba(hba)
	}
	if err := os.WriteFile(filepath.Join(s.data(), "pg_hba.conf"), []byte(hba), 0o600); err != nil {
		return fmt.Errorf("write pg_hba.conf: %w", err)
	}
	return s.copySecrets()
}

// reach makes sure that the account can execute the binaries: it copies them if others
// have no access to a parent directory (a clone in root's home).
func (s *Server) reach() error {
	if s.as == nil {
		return nil
	}
	try := exec.Command(filepath.Join(s.bin, "postgres"), "--version")
	try.Dir = "/"
	try.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	if try.Run() == nil {
		return nil
	}
	dir, err := os.MkdirTemp("", "fencepost-pg-server-")
	if err != nil {
		return fmt.Errorf("create a directory for the server's binaries: %w", err)
	}
	s.more = append(s.more, dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("set the permissions of the directory of the server's binaries: %w", err)
	}
	copied := filepath.Join(dir, "server")
	if out, err := exec.Command("cp", "-a", filepath.Dir(s.bin), copied).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the server's binaries: %w: %s", err, out)
	}
	s.bin = filepath.Join(copied, filepath.Base(s.bin))
	return nil
}
