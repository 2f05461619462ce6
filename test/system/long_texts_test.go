package system

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestLongTextsOfManyLeaveALeaderAlone: while many sessions send long texts that nobody has
// sent before, a leader goes on with its small statements, and its lease is renewed in time.
// The sessions stop when each has sent some, or when that has gone on for three TTLs, of
// which each is shorter than the analysis of all those texts.
func TestLongTextsOfManyLeaveALeaderAlone(t *testing.T) {
	t.Parallel()
	const (
		sessions = 200
		size     = 60_000 // bytes of each text
		texts    = 3      // of each session
		ttl      = 30 * time.Second
	)
	h := newCluster(t, "postgres", onServer(pgtest.Start(t, pgtest.WithConfig(map[string]string{"max_connections": "300"}))), with("LEASE_TTL="+ttl.String()))
	p := h.proxy()
	leader := h.join(p, "leader", "campaign", "wait")

	var load sync.WaitGroup
	var sent atomic.Int64
	failed := make(chan error, sessions)
	ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
	defer cancel()
	for i := range sessions {
		load.Go(func() {
			conn, err := pgconn.Connect(ctx, h.dsn(p, "crowd", "campaign", "off"))
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				failed <- err
				return
			}
			defer conn.Close(ctx)
			for n := range texts {
				text := fmt.Sprintf("SELECT %d WHERE 'y' IN (%s'z')", i*texts+n, strings.Repeat("'xxxxxxxxxx',", size/13))
				_, err := conn.Exec(ctx, text).ReadAll()
				switch {
				case ctx.Err() != nil:
					return
				case err != nil:
					failed <- err
					return
				}
				sent.Add(1)
			}
		})
	}
	done := make(chan struct{})
	go func() { load.Wait(); close(done) }()

	least, rounds := ttl, 0
	for running := true; running; rounds++ {
		select {
		case <-done:
			running = false
		default:
		}
		leader.must("INSERT INTO work VALUES ('small')")
		var seen struct {
			Left *float64 `json:"lease_left_seconds"`
		}
		_, body := p.Get(t, "/v1/resources/"+h.db+"/"+resource)
		if err := json.Unmarshal([]byte(body), &seen); err != nil || seen.Left == nil {
			t.Fatalf("the leader has no lease: %s, %v", body, err)
		}
		least = min(least, time.Duration(*seen.Left*float64(time.Second)))
	}
	t.Logf("%d texts, %d small statements, the lease had at least %s left", sent.Load(), rounds, least)
	if complete := ctx.Err() == nil; len(failed) > 0 || sent.Load() == 0 || complete && sent.Load() != sessions*texts {
		t.Errorf("%d of %d texts were answered, %d sessions failed", sent.Load(), sessions*texts, len(failed))
	}
	for len(failed) > 0 {
		t.Error(<-failed)
	}
	if least < ttl/3 {
		t.Errorf("the lease had only %s left, less than a third of %s", least, ttl)
	}
}
