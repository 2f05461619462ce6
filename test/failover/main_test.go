package failover

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) {
	process.LimitParallel()
	pgtest.Main(m)
}
