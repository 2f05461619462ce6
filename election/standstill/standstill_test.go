package standstill

import (
	"fmt"
	"testing"
	"time"
)

// clock is a Clock whose time a test sets.
func clock() (c *Clock, now *time.Duration) {
	now = new(time.Duration)
	*now = time.Hour
	return New(func() time.Duration { return *now }), now
}

func free(t *testing.T, c *Clock, id string, want bool) {
	t.Helper()
	if got := c.Free("k", id, time.Second); got != want {
		t.Errorf("version %s is free: %v", id, got)
	}
}

func TestARecordIsFreeAfterItsTTL(t *testing.T) {
	t.Parallel()
	c, now := clock()
	free(t, c, "1", false) // it was not seen
	c.See("k", Version{ID: "1", Holder: "a"})
	*now += time.Second - 1
	c.See("k", Version{ID: "1", Holder: "a"})
	free(t, c, "1", false)
	*now++
	free(t, c, "1", true)
	c.See("k", Version{ID: "2", Holder: "a"})
	free(t, c, "2", false)
	free(t, c, "1", true)
	c.Forget("k")
	free(t, c, "1", false)
}

// TestOldVersionsLookOld: of the last versions. More are not kept.
func TestOldVersionsLookOld(t *testing.T) {
	t.Parallel()
	c, now := clock()
	for i := range remembered + 1 {
		c.See("k", Version{ID: fmt.Sprint(i), Holder: "a"})
		*now += time.Second
	}
	for i := range remembered {
		id := fmt.Sprint(i + 1)
		c.See("k", Version{ID: id, Holder: "a"})
		free(t, c, id, true)
	}
	c.See("k", Version{ID: "0", Holder: "a"})
	free(t, c, "0", false)
}

func TestWritesOfOthersAreNoSignOfLife(t *testing.T) {
	t.Parallel()
	c, now := clock()
	c.See("k", Version{ID: "1", Holder: "a", Write: "w"})
	*now += time.Second
	c.See("k", Version{ID: "2", Holder: "a", Write: "w"})
	free(t, c, "2", true)
	c.See("k", Version{ID: "3", Holder: "b", Write: "w"})
	free(t, c, "3", false)
	c.See("k", Version{ID: "4", Holder: "a", Write: "x"})
	free(t, c, "4", false)
	c.See("k", Version{ID: "5", Holder: "a"})
	*now += time.Second
	c.See("k", Version{ID: "6", Holder: "a"})
	free(t, c, "6", false)
}

// TestHoldersComeFirstAfterASilence: they could not renew meanwhile.
func TestHoldersComeFirstAfterASilence(t *testing.T) {
	t.Parallel()
	c, now := clock()
	c.See("k", Version{ID: "1", Holder: "a"})
	*now += silence
	c.Hear()
	free(t, c, "1", true)
	*now += silence + 1
	c.Hear()
	free(t, c, "1", false)
	*now += time.Second
	free(t, c, "1", true)
	if at, ok := c.Until("k", "1", time.Second); !ok || at != c.now() {
		t.Errorf("free at %v, %v; it is %v", at, ok, c.now())
	}
}

func TestHeldBy(t *testing.T) {
	t.Parallel()
	c, _ := clock()
	c.See("k", Version{ID: "1", Holder: "a"})
	c.See("k", Version{ID: "2"})
	for life, want := range map[string]string{"a": "k", "b": ""} {
		if got := c.HeldBy(life); got != want {
			t.Errorf("%s holds %q", life, got)
		}
	}
}
