package sqltext

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestCacheKeepsTextsApartBySettings(t *testing.T) {
	t.Parallel()
	c := NewCache(1 << 20)
	sql := `SELECT 'a\'; COMMIT; --'`
	on, off := c.Analyze(sql, DefaultSettings), c.Analyze(sql, Settings{SafeEncoding: true})
	if !on.Known || off.Known {
		t.Errorf("known: %v with standard_conforming_strings, %v without", on.Known, off.Known)
	}
	if c.AnalyzeBytes([]byte(sql), DefaultSettings) != on || c.Analyze(sql, DefaultSettings) != on {
		t.Error("the same text under the same settings was analyzed again")
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	c := NewCache(limit)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				sql := fmt.Sprintf("SELECT %d, 'some text'; SHOW x%d", i, g)
				if got := c.AnalyzeBytes([]byte(sql), DefaultSettings); len(got.Statements) != 2 {
					t.Errorf("%q: %d statements", sql, len(got.Statements))
				}
				if got := c.Analyze("SELECT 1", DefaultSettings); !got.Statements[0].Read {
					t.Error("SELECT 1 is not a read")
				}
			}
		})
	}
	wg.Wait()
	size, entries := 0, 0
	for i := range c.shards {
		mu := &c.shards[i].mu
		for _, generation := range []map[cacheKey]*Text{mu.young, mu.old} {
			for key, text := range generation {
				size += key.size(text)
			}
			entries += len(generation)
		}
	}
	if size > limit || entries == 0 {
		t.Errorf("%d entries of %d bytes, limit %d", entries, size, limit)
	}
	long := "SELECT '" + strings.Repeat("x", cachedTextMax) + "'"
	if c.Analyze(long, DefaultSettings) == c.Analyze(long, DefaultSettings) {
		t.Error("a long text was kept")
	}
}

func TestCacheKeepsWhatIsUsed(t *testing.T) {
	t.Parallel()
	c := NewCache(64 << 10)
	used := c.Analyze("SELECT 1", DefaultSettings)
	unused := c.Analyze("SELECT 2", DefaultSettings)
	for i := range 500 {
		c.Analyze(fmt.Sprintf("SELECT %d, 'some text'", i), DefaultSettings)
		if c.Analyze("SELECT 1", DefaultSettings) != used {
			t.Fatalf("behind %d other texts, one that is always used was analyzed again", i)
		}
	}
	if c.Analyze("SELECT 2", DefaultSettings) == unused {
		t.Error("a text that was not used is still there")
	}
}

func TestCacheHitDoesNotAllocate(t *testing.T) {
	c := NewCache(1 << 20)
	sql := []byte("SELECT abalance FROM pgbench_accounts WHERE aid = $1; SELECT 2")
	c.AnalyzeBytes(sql, DefaultSettings)
	if n := testing.AllocsPerRun(100, func() { c.AnalyzeBytes(sql, DefaultSettings) }); n != 0 {
		t.Errorf("a hit allocates %v times", n)
	}
}
