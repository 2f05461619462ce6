package protocol

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestTextsOfASessionAreBounded: a session keeps no more than 1 MB of texts,
// whatever its client prepares, in vain or not, and whether it reads the answers
// or not. It is not parallel: others allocate.
func TestTextsOfASessionAreBounded(t *testing.T) {
	const limit = 1 << 20
	failed := wiretest.Msg('E', []byte("SERROR\x00VERROR\x00C42601\x00Msyntax error\x00\x00"))
	ready := wiretest.Msg('Z', []byte("I"))
	for _, c := range []struct {
		name   string
		client func(i int) []byte
		server []byte // the answer to that and what stands in front; nil: none comes
	}{
		{"statements that fail", func(i int) []byte {
			return append(wiretest.Parse(fmt.Sprint("s", i), "selec '"+strings.Repeat("x", 900_000)+"'"), wiretest.Sync()...)
		}, append(failed, ready...)},
		{"statements that are prepared", func(i int) []byte {
			return append(wiretest.Parse(fmt.Sprint("s", i), "select '"+strings.Repeat("x", 100_000)+"'"), wiretest.Sync()...)
		}, append(wiretest.Msg('1'), ready...)},
		{"the unnamed statement, bound to many portals", func(i int) []byte {
			return append(wiretest.Parse("", fmt.Sprint("select '", i, strings.Repeat("x", 50_000), "'")), wiretest.Bind(fmt.Sprint("p", i), "")...)
		}, append(wiretest.Msg('1'), wiretest.Msg('2')...)},
		{"portals with long names", func(i int) []byte {
			return append(wiretest.Parse("", "select 1"), wiretest.Bind(fmt.Sprint(i, strings.Repeat("p", 50_000)), "")...)
		}, append(wiretest.Msg('1'), wiretest.Msg('2')...)},
		{"a flood that is not answered", func(i int) []byte {
			return wiretest.Parse(fmt.Sprint("s", i), "select '"+strings.Repeat("x", 20_000)+"'")
		}, nil},
		{"Queries that are not answered", func(i int) []byte {
			return wiretest.Query("select '" + strings.Repeat("x", 10_000) + "'")
		}, nil},
	} {
		m := leading(15)
		m.config.Mode = ModeReadOnly // nothing of ours in front but read-only mode
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range 400 {
			pumpUp(t, m, c.client(i), 1<<20)
			if c.server != nil {
				answerOurs(t, m)
				pumpDown(t, m, c.server, 1<<20)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		const rest = 2 << 20 // of the cache, and of the queue of replies
		if grown := int(after.HeapAlloc) - int(before.HeapAlloc); grown > limit+rest {
			t.Errorf("%s: the session keeps %d bytes", c.name, grown)
		}
		runtime.KeepAlive(m)
	}
}

// answerOurs answers what is the machine's own in front of the client's messages.
func answerOurs(t *testing.T, m *Machine) {
	t.Helper()
	for e := m.pendingReplies.front(); e != nil && e.own(); e = m.pendingReplies.front() {
		var reply []byte
		switch e.kind {
		case parse:
			reply = wiretest.Msg('1')
		case closing:
			reply = wiretest.Msg('3')
		case syncing:
			reply = wiretest.Msg('Z', []byte("I"))
		case run:
			reply = bytes.Join([][]byte{wiretest.Msg('2'), wiretest.Msg('C', []byte("SELECT 1\x00")), wiretest.Msg('3')}, nil)
		default:
			t.Fatalf("kind %d of ours is owed", e.kind)
		}
		pumpDown(t, m, reply, 1<<20)
	}
}
