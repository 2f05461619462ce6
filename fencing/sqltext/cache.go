package sqltext

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	// cacheShards limits how often two sessions compete for one lock.
	cacheShards = 16
	// cachedTextMax is the maximum length, in bytes, of a text that is cached.
	cachedTextMax = 16 << 10
	// cacheEntryOverhead is the approximate size of an entry, in bytes, in addition to
	// its text and its statements.
	cacheEntryOverhead = 256
)

// Cache caches the analysis of recurring texts. It is safe for concurrent use and
// bounded in bytes. A text that was used since the last sweep survives the next one.
type Cache struct {
	seed   maphash.Seed
	shards [cacheShards]cacheShard
}

type cacheShard struct {
	mu struct {
		sync.RWMutex
		entries map[cacheKey]*cacheEntry
		ring    []*cacheEntry // in the order of the clock hand
		hand    int
		size    int // sum of the entries' sizes
	}
	max int
}

type cacheKey struct {
	settings Settings
	sql      string
}

type cacheEntry struct {
	key  cacheKey
	text *Text
	size int
	used atomic.Bool
}

// NewCache returns an empty cache of about maxBytes at most.
func NewCache(maxBytes int) *Cache {
	c := &Cache{seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].max = maxBytes / cacheShards
		c.shards[i].mu.entries = make(map[cacheKey]*cacheEntry)
	}
	return c
}

// Analyze returns Analyze(sql, s), from the cache if possible.
func (c *Cache) Analyze(sql string, s Settings) *Text {
	if len(sql) > cachedTextMax {
		return Analyze(sql, s)
	}
	sh := &c.shards[maphash.String(c.seed, sql)%cacheShards]
	sh.mu.RLock()
	e := sh.mu.entries[cacheKey{s, sql}]
	sh.mu.RUnlock()
	if e != nil {
		e.touch()
		return e.text
	}
	return sh.add(strings.Clone(sql), s)
}

// AnalyzeBytes is Analyze for a text in a buffer. It does not retain the buffer, and a
// hit does not allocate.
func (c *Cache) AnalyzeBytes(sql []byte, s Settings) *Text {
	if len(sql) > cachedTextMax {
		return Analyze(string(sql), s)
	}
	if t := c.Lookup(sql, s); t != nil {
		return t
	}
	return c.shards[maphash.Bytes(c.seed, sql)%cacheShards].add(string(sql), s)
}

// Lookup returns the cached analysis of sql, or nil. It never parses.
func (c *Cache) Lookup(sql []byte, s Settings) *Text {
	if len(sql) > cachedTextMax {
		return nil
	}
	sh := &c.shards[maphash.Bytes(c.seed, sql)%cacheShards]
	sh.mu.RLock()
	e := sh.mu.entries[cacheKey{s, string(sql)}]
	sh.mu.RUnlock()
	if e == nil {
		return nil
	}
	e.touch()
	return e.text
}

// touch marks e as used. Loading first keeps the cache line shared between cores.
func (e *cacheEntry) touch() {
	if !e.used.Load() {
		e.used.Store(true)
	}
}

// add analyzes sql outside the lock and caches the result. The shard owns sql.
func (sh *cacheShard) add(sql string, s Settings) *Text {
	e := &cacheEntry{key: cacheKey{s, sql}, text: Analyze(sql, s)}
	e.size = cacheEntryOverhead + len(sql) + len(e.text.why) + len(e.text.Statements)*int(unsafe.Sizeof(Statement{}))
	for i := range e.text.Statements {
		e.size += len(e.text.Statements[i].Name) + len(e.text.Statements[i].Value) + e.text.Statements[i].dependencies.size()
	}
	if e.size > sh.max {
		return e.text
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if other := sh.mu.entries[e.key]; other != nil {
		return other.text
	}
	for sh.mu.size+e.size > sh.max {
		sh.evictLocked()
	}
	sh.mu.entries[e.key] = e
	sh.mu.ring = append(sh.mu.ring, e)
	sh.mu.size += e.size
	return e.text
}

// evictLocked drops the first entry, from the hand on, that has not been used since the
// hand last passed it. The ring must not be empty.
func (sh *cacheShard) evictLocked() {
	for {
		if sh.mu.hand >= len(sh.mu.ring) {
			sh.mu.hand = 0
		}
		e := sh.mu.ring[sh.mu.hand]
		if e.used.Swap(false) {
			sh.mu.hand++
			continue
		}
		last := len(sh.mu.ring) - 1
		sh.mu.ring[sh.mu.hand] = sh.mu.ring[last]
		sh.mu.ring[last] = nil
		sh.mu.ring = sh.mu.ring[:last]
		delete(sh.mu.entries, e.key)
		sh.mu.size -= e.size
		return
	}
}
