package system

import (
	"os"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/redistest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

// slack is added to tested time limits, because several servers, proxies and workers
// share two cores here. watch allows for other load on the machine.
const slack = time.Second

// stopServers ends the servers that all tests share, and which do not end by themselves.
var stopServers = []func(){etcdtest.StopShared, redistest.StopShared}

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		os.Exit(workerMain(os.Stdin, os.Stdout))
	}
	pgtest.Main(m, stopServers...)
}

// watch is a stopwatch.Watch whose limits are extended by slack too.
type watch struct{ stopwatch.Watch }

func startWatch(t testing.TB) watch { return watch{stopwatch.Start(t)} }

// late reports whether something that took so long exceeds its limit.
func (w watch) late(t testing.TB, took, bound time.Duration) bool {
	t.Helper()
	return w.Late(t, took, bound+slack)
}
