package consul

import (
	"crypto/rand"
	"testing"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/internal/consultest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	s, err := open(Config{Address: consultest.Shared(t).Addr(), Prefix: "swap-" + rand.Text()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	electiontest.RunStore(t, s)
}
