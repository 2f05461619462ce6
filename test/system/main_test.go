package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// patience bounds every wait whose length is not what a test is about: far
// beyond what a loaded machine needs.
const patience = 60 * time.Second

// slack is what a bound on time grows by where it is tested: two cores run
// several servers, proxies and workers at once here. Other work beside the tests is
// allowed for by stopwatch.
const slack = time.Second

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		os.Exit(workerMain(os.Stdin, os.Stdout))
	}
	pgtest.Main(m)
}

// built is the program under test, built once per test process.
var built struct {
	once sync.Once
	file *os.File
	err  error
}

// program returns the path of the fencepost program. It has no name in the
// file system any more, so nothing is left of it however the tests end.
func program(t testing.TB) string {
	t.Helper()
	built.once.Do(func() { built.file, built.err = buildProgram() })
	if built.err != nil {
		t.Fatal(built.err)
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), built.file.Fd())
}

func buildProgram() (*os.File, error) {
	dir, err := os.MkdirTemp("", "fencepost-system-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the program: %w", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "fencepost")
	args := []string{"build", "-buildvcs=false", "-o", path}
	if raceDetector {
		args = append(args, "-race")
	}
	if !fencing.Checking {
		args = append(args, "-tags=fencepost_unfenced")
	}
	out, err := exec.Command("go", append(args, "github.com/fencepost/fencepost/cmd/fencepost")...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("build fencepost: %w: %s", err, out)
	}
	return os.Open(path)
}

// environment is what processes under test inherit: nothing of the settings
// that the person who runs the tests may have, and what is given.
func environment(settings ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "FENCEPOST_") && !strings.HasPrefix(v, "PG") {
			env = append(env, v)
		}
	}
	if !fencing.Checking {
		env = append(env, "FENCEPOST_TEST_UNFENCED=1") // or serve refuses, and safety tests fail for that alone
	}
	env = append(env, "FENCEPOST_DEBUG_ORACLE=1")
	return append(env, settings...)
}

// eventually polls until condition holds, or fails the test.
func eventually(t testing.TB, within time.Duration, what string, condition func() bool) {
	t.Helper()
	if !holds(within, condition) {
		t.Fatalf("waited %s for: %s", within, what)
	}
}

// holds polls until condition holds. It returns false if it did not in time.
func holds(within time.Duration, condition func() bool) bool {
	deadline := time.Now().Add(within)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			return false
		}
		<-tick.C
	}
	return true
}

// always fails the test if condition ceases to hold before the time is over.
func always(t testing.TB, during time.Duration, what string, condition func() bool) {
	t.Helper()
	if holds(during, func() bool { return !condition() }) {
		t.Errorf("within %s this did not hold any more: %s", during, what)
	}
}
