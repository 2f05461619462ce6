package redistest

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// clockSource is a library that is preloaded into the server. libfaketime does not work together
// with jemalloc, which Redis uses.
//
//go:embed testdata/clock.c
var clockSource []byte

// planClock builds the library, and lets it read the file of the offset.
func (s *Server) planClock() (err error) {
	source, library := filepath.Join(s.dir, "clock.c"), filepath.Join(s.dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		return err
	}
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "gcc"
	}
	if out, err := exec.Command(compiler, "-shared", "-fPIC", "-O1", "-o", library, source).CombinedOutput(); err != nil {
		return fmt.Errorf("compile the clock: %w\n%s", err, out)
	}
	path := filepath.Join(s.dir, "offset")
	if s.clock, err = os.Create(path); err != nil {
		return err
	}
	s.Env = append(s.Env, "LD_PRELOAD="+library, "FENCEPOST_TEST_CLOCK="+path)
	return s.setClock(0)
}

// SetClock sets the server's wall clock this far ahead of the machine's, in whole seconds. It
// returns when the server shows that time.
func (s *Server) SetClock(t testing.TB, ahead time.Duration) {
	t.Helper()
	if err := s.setClock(ahead); err != nil {
		t.Fatal(err)
	}
	now, ok := s.Do(t, "TIME").([]any)
	var seconds int64
	if ok && len(now) > 0 {
		_, _ = fmt.Sscan(fmt.Sprint(now[0]), &seconds)
	}
	if off := time.Until(time.Unix(seconds, 0)) - ahead; off > 5*time.Second || off < -5*time.Second {
		t.Fatalf("the clock of Redis is %v off", off)
	}
}

func (s *Server) setClock(ahead time.Duration) error {
	var text [8]byte
	binary.NativeEndian.PutUint64(text[:], uint64(int64(ahead/time.Second)))
	if _, err := s.clock.WriteAt(text[:], 0); err != nil {
		return fmt.Errorf("write the offset of the clock: %w", err)
	}
	return nil
}
