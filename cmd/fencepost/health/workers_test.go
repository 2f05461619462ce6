package health

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing/store"
)

func TestRefusedRolesAreLookedAtForAWhile(t *testing.T) {
	t.Parallel()
	var r refusals
	at := time.Now()
	role := func(database, name string) refusedRole {
		return refusedRole{database, store.WorkerRole{Role: name, Resource: "billing"}}
	}
	r.add(role("shop", "a"), at)
	r.add(role("depot", "b"), at)
	if n := len(r.current(at.Add(refusedFor))); n != 2 {
		t.Errorf("%d roles are looked at, want 2", n)
	}
	r.add(role("shop", "c"), at.Add(time.Second))
	r.passed("shop", at) // the look began before c was refused
	if n := len(r.current(at)); n != 2 {
		t.Errorf("%d roles are looked at after the database of one was found to be right, want 2", n)
	}
	if left := r.current(at.Add(refusedFor + time.Millisecond)); len(left) != 1 || left[0] != role("shop", "c") {
		t.Errorf("in the end %v are looked at", left)
	}
	for n := range 2 * maxRefused {
		r.add(role("shop", fmt.Sprint(n)), at)
	}
	if n := len(r.current(at)); n != maxRefused {
		t.Errorf("%d roles are remembered, want %d", n, maxRefused)
	}
}
