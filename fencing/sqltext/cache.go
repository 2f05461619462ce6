package sqltext

import (
	"hash/maphash"
	"sync"
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
// bounded in bytes: when the texts of the young generation have half of the room, it becomes
// the old one, which is dropped. A text that is used becomes one of the young ones.
type Cache struct {
	seed   maphash.Seed
	shards [cacheShards]cacheShard
}

type cacheShard struct {
	mu struct {
		sync.RWMutex
		young, old map[cacheKey]*Text
		size       int // of young, in bytes
	}
	max int // of a generation
}

type cacheKey struct {
	settings Settings
	sql      string
}

// NewCache returns an empty cache of about maxBytes at most.
func NewCache(maxBytes int) *Cache {
	c := &Cache{seed: maphash.MakeSeed()}
	for i := range c.shards {
		c.shards[i].max = maxBytes / cacheShards / 2
		c.shards[i].mu.young = make(map[cacheKey]*Text)
	}
	return c
}

// Analyze returns Analyze(sql, s), from the cache if possible.
func (c *Cache) Analyze(sql string, s Settings) *Text { return c.AnalyzeBytes([]byte(sql), s) }

// AnalyzeBytes is Analyze for a text in a buffer. It does not retain the buffer, and a
// hit does not allocate.
func (c *Cache) AnalyzeBytes(sql []byte, s Settings) *Text {
	if t := c.Lookup(sql, s); t != nil {
		return t
	}
	key := cacheKey{s, string(sql)}
	t := Analyze(key.sql, s)
	if len(sql) > cachedTextMax {
		return t
	}
	return c.shard(sql).add(key, t)
}

// Lookup returns the cached analysis of sql, or nil. It never parses.
func (c *Cache) Lookup(sql []byte, s Settings) *Text {
	if len(sql) > cachedTextMax {
		return nil
	}
	sh := c.shard(sql)
	sh.mu.RLock()
	t, young := sh.mu.young[cacheKey{s, string(sql)}]
	if !young {
		t = sh.mu.old[cacheKey{s, string(sql)}]
	}
	sh.mu.RUnlock()
	if t != nil && !young {
		return sh.add(cacheKey{s, string(sql)}, t)
	}
	return t
}

func (c *Cache) shard(sql []byte) *cacheShard {
	return &c.shards[maphash.Bytes(c.seed, sql)%cacheShards]
}

// add adds t to the young texts, and returns the analysis that is there.
func (sh *cacheShard) add(key cacheKey, t *Text) *Text {
	size := key.size(t)
	if size > sh.max {
		return t
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if other := sh.mu.young[key]; other != nil {
		return other
	}
	if sh.mu.size+size > sh.max {
		sh.mu.old, sh.mu.young, sh.mu.size = sh.mu.young, make(map[cacheKey]*Text), 0
	}
	sh.mu.young[key] = t
	sh.mu.size += size
	return t
}

// size is about how many bytes the entry of t takes.
func (k cacheKey) size(t *Text) int {
	n := cacheEntryOverhead + len(k.sql) + len(t.why) + len(t.Statements)*int(unsafe.Sizeof(Statement{}))
	for i := range t.Statements {
		n += len(t.Statements[i].Name) + len(t.Statements[i].Value) + t.Statements[i].dependencies.size()
	}
	return n
}
