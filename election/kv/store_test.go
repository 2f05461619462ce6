package kv_test

import (
	"testing"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/kv"
)

// The store on which the tests of this package rest does what a Store must do.
func TestStore(t *testing.T) {
	t.Parallel()
	electiontest.RunStore(t, kv.NewMemory())
}
