package election

import "testing"

func TestRequestsThatExcludeEachOther(t *testing.T) {
	t.Parallel()
	excluded := map[[2]request]bool{{requestAcquire, requestRelease}: true, {requestRelease, requestAcquire}: true}
	for first := range requestKinds {
		for second := range requestKinds {
			want := first == second || excluded[[2]request{first, second}]
			var q requests
			q.begin(first, nil)
			if got := panics(func() { q.begin(second, nil) }); got != want {
				t.Errorf("a request to %v while one to %v is in flight: refused is %v", second, first, got)
			}
			q.end(first)
			if q.end(second); q.any() {
				t.Errorf("%v and %v are still in flight after their ends", first, second)
			}
		}
	}
}

func TestCancelledRequestIsInFlightUntilItsResultIsKnown(t *testing.T) {
	t.Parallel()
	var q requests
	stopped := 0
	q.cancel(requestGrant)
	q.begin(requestGrant, func() { stopped++ })
	q.cancel(requestRenew)
	if stopped != 0 {
		t.Error("the grant was stopped together with another request")
	}
	q.cancel(requestGrant)
	if stopped != 1 || !q.has(requestGrant) {
		t.Errorf("stopped %d times, in flight is %v", stopped, q.has(requestGrant))
	}
	q.end(requestGrant)
	q.cancel(requestGrant)
	if stopped != 1 || q.any() {
		t.Errorf("after its end: stopped %d times, in flight is %v", stopped, q.any())
	}
}

func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return false
}
