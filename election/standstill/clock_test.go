package standstill

import (
	"fmt"
	"testing"
	"time"
)

// TestOldWritesLookOld: the last ones. More are not kept.
func TestOldWritesLookOld(t *testing.T) {
	t.Parallel()
	now := time.Hour
	c := newClock(func() time.Duration { return now })
	for i := range remembered + 1 {
		c.observe(key, fmt.Sprint(i))
		now += time.Second
	}
	for i := range remembered + 1 {
		c.observe(key, fmt.Sprint(i+1))
		if write := fmt.Sprint(i + 1); c.expired(key, write, time.Second) != (i+1 <= remembered) {
			t.Errorf("write %s is over: %v", write, c.expired(key, write, time.Second))
		}
	}
	c.forget(key)
	if c.expired(key, "1", time.Second) {
		t.Error("what was forgotten is over")
	}
}
