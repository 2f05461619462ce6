package system

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestLongTextsOfManyLeaveALeaderAlone: while many sessions send long texts that nobody has
// sent before, a leader's small statements do not wait behind them, and its lease is renewed.
//
// Counts show that on a machine of any speed. A text takes a hundred times as long as a small
// statement, and up to two hundred of them are due at any time: a leader that waited for them would
// end one statement while hundreds of texts are answered. It has to end more statements than texts
// are answered.
//
// The proxy has no observer, because that one analyzes every text where the bytes are relayed.
func TestLongTextsOfManyLeaveALeaderAlone(t *testing.T) {
	t.Parallel()
	const (
		sessions = 200
		ttl      = 15 * time.Second
		renewals = 2
		enough   = 20 // long texts
	)
	h := newCluster(t, "postgres", onServer(pgtest.Start(t, pgtest.WithConfig(map[string]string{"max_connections": "300"}))),
		with("LEASE_TTL="+ttl.String()))
	p := h.proxy()
	leader := h.join(p, "leader", "campaign", "wait")
	crowd := startCrowd(t, h.dsn(p, "crowd", "campaign", "off"), sessions)
	lease := watchLease(t, p, "/v1/resources/"+h.db+"/"+resource)
	small, renewed := int64(0), lease.renewed.Load()
	for end := time.Now().Add(2 * process.Patience); crowd.answered.Load() < enough || lease.renewed.Load() < renewed+renewals; small++ {
		if time.Now().After(end) {
			lease.end(t)
			t.Fatalf("%d long texts were answered, and the lease was renewed %d times", crowd.answered.Load(), lease.renewed.Load()-renewed)
		}
		leader.must("INSERT INTO work VALUES ('small')")
	}
	long := crowd.answered.Load()
	crowd.end(t)
	lease.end(t)
	t.Logf("%d small statements beside %d long texts", small, long)
	if small < long {
		t.Errorf("while %d long texts were answered, the leader ended %d small statements", long, small)
	}
}

// crowd is many sessions that send long texts.
type crowd struct {
	over     context.CancelFunc
	ended    sync.WaitGroup
	answered atomic.Int64
	failed   chan error
}

// startCrowd returns when the sessions begin to send their texts, all of them at once.
func startCrowd(t *testing.T, dsn string, sessions int) *crowd {
	t.Helper()
	ctx, over := context.WithCancel(t.Context())
	c := &crowd{over: over, failed: make(chan error, sessions)}
	var connected sync.WaitGroup
	connected.Add(sessions)
	connecting := make(chan struct{}, 10) // more would be refused where a process takes long to start
	for i := range sessions {
		c.ended.Go(func() {
			connecting <- struct{}{}
			conn, err := connectLong(ctx, dsn)
			<-connecting
			connected.Done()
			if err == nil {
				connected.Wait()
				err = c.send(ctx, conn, i)
			}
			if err != nil && ctx.Err() == nil {
				c.failed <- err
			}
		})
	}
	t.Cleanup(func() { over(); c.ended.Wait() })
	connected.Wait()
	return c
}

const longText = 60_000 // bytes

// connectLong connects a session, and sends something that is longer than the texts, but soon
// analyzed. It gives the proxy's buffer its size: each of the texts then has room in it, so that
// the event loop may relay it.
func connectLong(ctx context.Context, dsn string) (*pgconn.PgConn, error) {
	conn, err := pgconn.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "/*"+strings.Repeat("x", longText+1000)+"*/ SELECT 1").ReadAll(); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// send sends the texts of one session, until ctx ends.
func (c *crowd) send(ctx context.Context, conn *pgconn.PgConn, session int) error {
	defer conn.Close(context.WithoutCancel(ctx))
	const value = "'xxxxxxxxxx',"
	for n := 0; ; n++ {
		text := fmt.Sprintf("SELECT %d, %d WHERE 'y' IN (%s'z')", session, n, strings.Repeat(value, longText/len(value)))
		if _, err := conn.Exec(ctx, text).ReadAll(); err != nil {
			return err
		}
		c.answered.Add(1)
	}
}

// end ends the sessions.
func (c *crowd) end(t *testing.T) {
	t.Helper()
	c.over()
	c.ended.Wait()
	for len(c.failed) > 0 {
		t.Error(<-c.failed)
	}
}

// leaseWatch samples how much of a lease is left.
type leaseWatch struct {
	stop    context.CancelFunc
	done    chan struct{}
	renewed atomic.Int64 // how often more was left than before
	last    time.Duration
	err     error
}

// watchLease begins to sample the lease of a resource, which the proxy shows at path.
func watchLease(t *testing.T, p *process.Server, path string) *leaseWatch {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &leaseWatch{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for w.err == nil && ctx.Err() == nil {
			w.sample("http://" + p.Admin + path)
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { stop(); <-w.done })
	return w
}

func (w *leaseWatch) sample(url string) {
	client := http.Client{Timeout: process.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		w.err = err
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	var seen struct {
		Left *float64 `json:"lease_left_seconds"`
	}
	if err == nil {
		err = json.Unmarshal(body, &seen)
	}
	if err == nil && seen.Left == nil && w.last == 0 {
		return // it could not be renewed while the server started so many processes
	}
	if err != nil || seen.Left == nil {
		w.err = fmt.Errorf("the leader has no lease: %s, %v", body, err)
		return
	}
	left := time.Duration(*seen.Left * float64(time.Second))
	if left > w.last && w.last > 0 {
		w.renewed.Add(1)
	}
	w.last = left
}

// end stops, and fails the test if a sample failed.
func (w *leaseWatch) end(t *testing.T) {
	t.Helper()
	w.stop()
	<-w.done
	if w.err != nil {
		t.Fatal(w.err)
	}
}
