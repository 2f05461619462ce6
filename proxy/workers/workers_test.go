package workers

import (
	"context"
	"slices"
	"testing"

	"github.com/fencepost/fencepost/fencing"
)

// session is one whose backend has this process id.
type session struct {
	pid     uint32
	working bool
	stuck   bool
	database
}

func (s *session) Poll() (uint32, bool) { return s.pid, s.working }
func (s *session) SetStuck(stuck bool)  { s.stuck = stuck }
func (s *session) Fence() fencing.Fence { return s.database }

// database is one in which these backends wait for others of the same worker.
type database struct {
	fencing.Fence
	waiting []uint32
}

func (d database) WaitFor(_ context.Context, waiting, holding []uint32) (stuck []uint32, _ error) {
	for _, pid := range waiting {
		if slices.Contains(d.waiting, pid) && len(holding) > 0 {
			stuck = append(stuck, pid)
		}
	}
	return stuck, nil
}

// TestWhoWaitsForTheWorkerItselfIsStuck, and who waits for someone else is not.
func TestWhoWaitsForTheWorkerItselfIsStuck(t *testing.T) {
	t.Parallel()
	cs := New()
	defer cs.Close()
	d := database{waiting: []uint32{1}}
	worker := fencing.JoinRequest{Worker: "w"}
	waits, works, rests := &session{pid: 1, working: true}, &session{pid: 2, working: true, stuck: true}, &session{pid: 3}
	var place *Place
	for _, s := range []*session{waits, works, rests} {
		place = cs.Join(s, worker)
	}
	place.worker.poll(t.Context(), d)
	if !waits.stuck || works.stuck || rests.stuck {
		t.Errorf("stuck: %t, %t, %t; want only the first", waits.stuck, works.stuck, rests.stuck)
	}
}

// TestASessionThatLeavesTwiceLeavesLaterOnesTogether: the second time, the worker's later sessions are counted together.
func TestASessionThatLeavesTwiceLeavesLaterOnesTogether(t *testing.T) {
	t.Parallel()
	cs := New()
	defer cs.Close()
	worker := fencing.JoinRequest{Worker: "w"}
	first := cs.Join(&session{}, worker)
	first.Leave()
	second := cs.Join(&session{}, worker)
	first.Leave()
	if third := cs.Join(&session{}, worker); third.worker != second.worker {
		t.Error("two sessions of one worker are not counted together")
	}
}
