package kv

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// distant answers an End after a second.
type distant struct {
	*memory
	ending, most atomic.Int64
}

func (d *distant) End(ctx context.Context, life string) error {
	d.most.Store(max(d.most.Load(), d.ending.Add(1)))
	defer d.ending.Add(-1)
	select {
	case <-time.After(time.Second):
		return d.memory.End(ctx, life)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestManyOldLeasesAreEndedAtOnce: a proxy that starts ends what it has left, and nobody else's.
func TestManyOldLeasesAreEndedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.marker = newMarker()
		award := func(resource, proxy string) (life string) {
			b := bid("a")
			b.Resource = resource
			begun, err := m.Begin(t.Context(), b.TTL)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := m.Swap(t.Context(), keyOf("db", b.Resource), Entry{Marker: m.marker}, recordOf(b, proxy, time.Now()).encode(), begun.ID); err != nil {
				t.Fatal(err)
			}
			return begun.ID
		}
		for i := range 40 {
			award(fmt.Sprint("r", i), "one")
		}
		others := award("of another proxy", "two")
		core, log := observer.New(zap.WarnLevel)
		d := &distant{memory: m}
		c, err := New(Config{Store: d, Source: "memory", Proxy: "one", Logger: zap.New(core)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		began := time.Now()
		mustAcquire(t, c.Database("db"), "a")
		if took := time.Since(began); took > 4*time.Second || m.living() != 2 || !m.lives[others] {
			t.Errorf("it took %v, and %d lives go on; want the new one and that of another proxy", took, m.living())
		}
		if d.most.Load() > endsAtOnce {
			t.Errorf("%d were ended at once", d.most.Load())
		}
		for _, line := range log.All() {
			if strings.Contains(line.Message, "cannot watch") {
				t.Errorf("%s: %v", line.Message, line.ContextMap())
			}
		}
	})
}
