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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestLongTextsOfManyLeaveALeaderAlone: while many sessions send long texts that nobody has
// sent before, a leader's small statements keep their pace, and its lease is renewed in time.
//
// The pace is that of statements which take turns with the same ones on a connection without the
// proxy, so that what slows the whole machine slows both. Beside the texts it is compared with
// that of the same leader alone. A text takes a hundred times as long as a small statement, and
// up to two hundred of them are due at any time: a leader that waited for them would be hundreds
// of times as slow.
//
// The proxy has no observer, because that one analyzes every text where the bytes are relayed.
func TestLongTextsOfManyLeaveALeaderAlone(t *testing.T) {
	t.Parallel()
	const (
		sessions = 200
		ttl      = 30 * time.Second
		texts    = 2 * ttl / 3 // for so long the texts are sent, in which the lease is renewed twice
		alone    = 3 * time.Second
		slowest  = 10 // times as slow as alone
	)
	pg := pgtest.Start(t, pgtest.WithConfig(map[string]string{"max_connections": "300"}))
	h := newCluster(t, "postgres", onServer(pg), with("LEASE_TTL="+ttl.String(), "DEBUG_ORACLE=0"))
	p := h.proxy()
	leader := h.join(p, "leader", "campaign", "wait")
	direct, err := pgx.Connect(t.Context(), pg.DSN(pgtest.App, h.db))
	if err != nil {
		t.Fatal(err)
	}
	twin := &client{Conn: direct, t: t}
	t.Cleanup(twin.leave)

	before := paceOf(leader, twin, alone)
	lease := watchLease(t, p, "/v1/resources/"+h.db+"/"+resource)
	crowd := startCrowd(t, h.dsn(p, "crowd", "campaign", "off"), sessions)
	beside := paceOf(leader, twin, texts)
	long := crowd.end(t)
	least, samples := lease.end(t)

	slower := beside.ratio() / before.ratio()
	t.Logf("alone: %s; beside %d long texts: %s, %.1f times as slow; the lease had at least %s left in %d samples", before, long, beside, slower, least, samples)
	if long == 0 {
		t.Error("no long text was answered")
	}
	if slower > slowest {
		t.Errorf("beside the long texts the leader was %.1f times as slow as alone, more than %d times", slower, slowest)
	}
	if least < ttl/3 {
		t.Errorf("the lease had only %s left, less than a third of %s", least, ttl)
	}
}

// pace is the mean time of a small statement through the proxy, and of the same one without. A
// mean shows those that wait long, however few they are.
type pace struct{ proxied, direct time.Duration }

func (p pace) ratio() float64 { return float64(p.proxied) / float64(p.direct) }

func (p pace) String() string {
	return fmt.Sprintf("%s for a small statement, %s without the proxy", p.proxied, p.direct)
}

// paceOf measures for a time how fast both clients are. The direct one has several turns in a
// row, so that its mean is not that of a backend which has just been waiting long.
func paceOf(proxied, direct *client, period time.Duration) pace {
	const turns = 3
	var total pace
	n := time.Duration(0)
	timed := func(c *client) time.Duration {
		start := time.Now()
		c.must("INSERT INTO work VALUES ('small')")
		return time.Since(start)
	}
	for began := time.Now(); time.Since(began) < period; n++ {
		total.proxied += timed(proxied)
		for range turns {
			total.direct += timed(direct)
		}
	}
	return pace{total.proxied / n, total.direct / (turns * n)}
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
	for i := range sessions {
		c.ended.Go(func() {
			conn, err := connectLong(ctx, dsn)
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

// end ends the sessions, and returns how many texts were answered.
func (c *crowd) end(t *testing.T) int64 {
	t.Helper()
	c.over()
	c.ended.Wait()
	for len(c.failed) > 0 {
		t.Error(<-c.failed)
	}
	return c.answered.Load()
}

// leaseWatch samples how much of a lease is left.
type leaseWatch struct {
	stop    context.CancelFunc
	done    chan struct{}
	least   time.Duration
	samples int
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
	if err != nil || seen.Left == nil {
		w.err = fmt.Errorf("the leader has no lease: %s, %v", body, err)
		return
	}
	left := time.Duration(*seen.Left * float64(time.Second))
	if w.samples++; w.samples == 1 || left < w.least {
		w.least = left
	}
}

// end returns the least that was left.
func (w *leaseWatch) end(t *testing.T) (least time.Duration, samples int) {
	t.Helper()
	w.stop()
	<-w.done
	if w.err != nil {
		t.Fatal(w.err)
	}
	return w.least, w.samples
}
