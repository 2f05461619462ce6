package system

import (
	"os"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// slack is added to tested time limits, because several servers, proxies and workers
// share two cores here. stopwatch allows for other load on the machine.
const slack = time.Second

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		os.Exit(workerMain(os.Stdin, os.Stdout))
	}
	pgtest.Main(m, etcdtest.StopShared)
}
