package election

import (
	"errors"
	"testing"

	"github.com/fencepost/fencepost/fencing"
)

func TestOnlyAHigherGrantShowsThatTheFenceWorks(t *testing.T) {
	t.Parallel()
	fault := errors.New("restored")
	for _, c := range []struct {
		epoch    fencing.Epoch
		recorded bool
		fault    error
	}{
		{4, false, fault},
		{5, true, fault},
		{6, true, nil},
	} {
		f := fenceFacts{record: fencing.Record{Epoch: 5}, fault: fault}
		recorded := f.observe(fencing.Record{Epoch: c.epoch, Worker: "w"})
		if recorded != c.recorded || (f.record.Worker == "w") != c.recorded || f.fault != c.fault {
			t.Errorf("epoch %d after 5: recorded is %v, %+v", c.epoch, recorded, f)
		}
	}
}
