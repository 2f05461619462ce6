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

// patience bounds every wait whose duration is not under test. It is far longer than a
// loaded machine needs.
const patience = 60 * time.Second

// slack is added to tested time limits, because several servers, proxies and workers
// share two cores here. stopwatch allows for other load on the machine.
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

// program returns the path of the fencepost program. The file is already unlinked, so
// nothing is left of it however the tests end.
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
		return nil, fmt.Errorf("create a directory for the program: %w", err)
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

// environment returns the environment of processes under test: the given settings,
// without the Fencepost settings of the person who runs the tests.
func environment(settings ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "FENCEPOST_") && !strings.HasPrefix(v, "PG") {
			env = append(env, v)
		}
	}
	if !fencing.Checking {
		env = append(env, "FENCEPOST_TEST_UNFENCED=1") // otherwise serve refuses to start, and safety tests fail only for that reason
	}
	env = append(env, "FENCEPOST_DEBUG_ORACLE=1")
	return append(env, settings...)
}

// eventually polls until condition holds, and fails the test if it does not in time.
func eventually(t testing.TB, within time.Duration, what string, condition func() bool) {
	t.Helper()
	if !holds(within, condition) {
		t.Fatalf("waited %s for: %s", within, what)
	}
}

// holds polls until condition holds. It returns false if it does not in time.
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

// always fails the test if condition does not hold throughout.
func always(t testing.TB, during time.Duration, what string, condition func() bool) {
	t.Helper()
	if holds(during, func() bool { return !condition() }) {
		t.Errorf("within %s this no longer held: %s", during, what)
	}
}
