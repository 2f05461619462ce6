package safety

import (
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}
