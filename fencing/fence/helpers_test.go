package fence_test

import (
	"testing"

	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var ops = operator.Orderer{AskedBy: "ops@host", Reason: "drill"}
