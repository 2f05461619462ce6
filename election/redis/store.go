package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
)

const (
	// pollEvery is how often the watch asks whether anything was awarded or released, and
	// lookEvery how often it looks at everything, because what expires is not counted.
	pollEvery = 250 * time.Millisecond
	lookEvery = time.Second
	// tries is how often a renewal is sent until it is answered. The first is given up after this
	// part of the time that there is, as one that was sent over a dead connection must be.
	tries = 3
)

// store is the kv.Store of one prefix in one database of a Redis.
type store struct {
	pool   *redis.Pool
	prefix string // of all keys, with the slash at its end
	keys   []string
	name   string // of the service in errors
	user   string
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup            // of requests
	slots  chan struct{}             // of requests that are no renewals
	broken atomic.Pointer[time.Time] // until when a connection must have been used to be dead now; nil is never
}

var (
	_ kv.Store   = (*store)(nil)
	_ kv.Checker = (*store)(nil)
)

func newStore(cfg Config) *store {
	prefix := cfg.Prefix + "/"
	s := &store{
		prefix: prefix, keys: []string{prefix + ".generation", prefix + ".leases", prefix + ".life/"},
		name: "Redis at " + cfg.Address, user: cfg.User, slots: make(chan struct{}, others),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// run runs a script, and returns when it has ended or ctx has. The whole text goes with each request,
// so that no script has to be there before. Nothing is sent again by itself: it might be carried out
// twice. The caller repeats what fails, and knows what may be repeated.
func (s *store) run(ctx context.Context, what, script string, args ...any) ([]string, error) {
	type answer struct {
		values []string
		err    error
	}
	answers := make(chan answer, 1)
	if script != beatScript {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, s.failed(ctx, what, ctx.Err())
		}
	}
	s.wg.Go(func() {
		values, err := s.eval(ctx, script, args)
		if script != beatScript {
			<-s.slots
		}
		answers <- answer{values, err}
	})
	select {
	case a := <-answers:
		return a.values, s.failed(ctx, what, a.err)
	case <-ctx.Done(): // to close a connection over TLS may take longer
		return nil, s.failed(ctx, what, ctx.Err())
	}
}

// eval sends a script over one of the connections. It ends with ctx, and with Close.
func (s *store) eval(ctx context.Context, script string, args []any) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*answerTimeout) // to connect, and to be answered
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	if err := s.ctx.Err(); err != nil { // the pool may be closed: asked with a context that ends, it panics
		return nil, err
	}
	conn, err := s.pool.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	command := []any{script, len(s.keys)}
	for _, key := range s.keys {
		command = append(command, key)
	}
	values, err := texts(redis.DoContext(conn, ctx, "EVAL", append(command, args...)...))
	// What the caller has broken by ending says nothing about the others.
	broken := conn.Err() != nil && !errors.Is(err, context.Canceled) || isReplica(err)
	_ = conn.Close() // it returns to the pool, unless it is broken, which err says
	if broken {
		now := time.Now()
		s.broken.Store(&now)
	}
	return values, err
}

// isReplica reports whether the server that answered is not the master, or not any more. Its connections
// are closed, because the address may lead to the master by now.
func isReplica(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer) && (strings.HasPrefix(string(answer), "READONLY ") || strings.HasPrefix(string(answer), "MASTERDOWN "))
}

// texts returns what a script has answered, numbers too, as texts.
func texts(answer any, err error) ([]string, error) {
	values, err := redis.Values(answer, err)
	if err != nil {
		return nil, err
	}
	all := make([]string, len(values))
	for i, value := range values {
		if n, ok := value.(int64); ok {
			all[i] = strconv.FormatInt(n, 10)
		} else if all[i], err = redis.String(value, nil); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// usable refuses a connection that was idle when another one broke: after a restart of Redis, or a
// failover, all are dead.
func (s *store) usable(lastUsed time.Time) error {
	if broken := s.broken.Load(); broken != nil && !lastUsed.After(*broken) {
		return errors.New("another connection has broken since")
	}
	return nil
}

// entry returns what the text of a field means, without the marker.
func entry(text, held string) kv.Entry {
	if text == "" {
		return kv.Entry{Basis: text}
	}
	version, rest, _ := strings.Cut(text, " ")
	life, record, ok := strings.Cut(rest, " ")
	n, err := strconv.ParseInt(version, 10, 64)
	if !ok || err != nil { // what another program has written
		return kv.Entry{Record: []byte(text), Basis: text}
	}
	e := kv.Entry{Record: []byte(record), Version: n, Basis: text}
	if held == "1" {
		e.Life = life
	}
	return e
}

// Read implements kv.Store.
func (s *store) Read(ctx context.Context, key string) (kv.Entry, error) {
	answer, err := s.run(ctx, "read the lease "+key, readScript, key)
	if err != nil {
		return kv.Entry{}, err
	}
	e := entry(answer[1], answer[2])
	e.Marker = answer[0]
	return e, nil
}

// Swap implements kv.Store.
func (s *store) Swap(ctx context.Context, key string, old kv.Entry, record []byte, life string) (version int64, err error) {
	basis, _ := old.Basis.(string)
	answer, err := s.run(ctx, "write the lease "+key, swapScript, key, basis, record, life, old.Marker)
	if err != nil {
		return 0, err
	}
	switch answer[0] {
	case "written":
		return strconv.ParseInt(answer[1], 10, 64)
	case "lost":
		return 0, fmt.Errorf("%w: its key in Redis has expired or was deleted", elector.ErrLost)
	}
	return 0, kv.ErrConflict
}

// Begin implements kv.Store. Redis takes milliseconds.
func (s *store) Begin(ctx context.Context, ttl time.Duration) (kv.Life, error) {
	life := kv.Life{ID: rand.Text(), TTL: (ttl + time.Millisecond - 1).Truncate(time.Millisecond)}
	_, err := s.run(ctx, "begin a lease", beginScript, life.ID, life.TTL.Milliseconds())
	return life, err
}

// Beat implements kv.Store. A request over a connection that is dead gets no answer, so that it is
// sent again within the time that there is, which changes nothing if the first one arrived.
func (s *store) Beat(ctx context.Context, key, life string) error {
	var err error
	for i := range tries {
		if err = s.beatIn(ctx, key, life, tries-i); err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return err
}

// beatIn renews a lease within the part of the time that is left for one of so many attempts.
func (s *store) beatIn(ctx context.Context, key, life string, attempts int) error {
	if end, ok := ctx.Deadline(); ok {
		part, cancel := context.WithTimeout(ctx, time.Until(end)/time.Duration(attempts))
		defer cancel()
		ctx = part
	}
	answer, err := s.run(ctx, "renew the lease "+key, beatScript, key, life)
	if err == nil && answer[0] == "lost" {
		err = fmt.Errorf("%w: %s", elector.ErrLost, answer[1])
	}
	return err
}

// End implements kv.Store.
func (s *store) End(ctx context.Context, life string) error {
	_, err := s.run(ctx, "end a lease", endScript, life)
	return err
}

// Mark implements kv.Store.
func (s *store) Mark(ctx context.Context, marker string, replace bool) error {
	how := "keep"
	if replace {
		how = "replace"
	}
	_, err := s.run(ctx, "write "+s.keys[0], markScript, marker, how)
	return err
}

// Position implements kv.Store.
func (s *store) Position(ctx context.Context) (marker string, version int64, err error) {
	answer, err := s.run(ctx, "read "+s.keys[0], positionScript)
	if err != nil {
		return "", 0, err
	}
	version, err = strconv.ParseInt(answer[1], 10, 64)
	if answer[0] == "" || err != nil {
		return answer[0], 0, nil // whatever is counted there counts for no one
	}
	return answer[0], version, nil
}

// Check implements kv.Checker.
func (s *store) Check(ctx context.Context) error {
	_, err := s.run(ctx, "try what an election needs", checkScript, rand.Text())
	return err
}

// Watch implements kv.Store.
func (s *store) Watch(ctx context.Context, see func(kv.Snapshot)) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	digest, counted := "", ""
	for next := time.Now(); ; {
		if now := time.Now(); !now.Before(next) {
			counted, next = "", now.Add(lookEvery)
		}
		answer, err := s.run(ctx, "watch "+s.prefix, watchScript, digest, counted)
		if err != nil {
			return err
		}
		digest, counted = answer[0], answer[1]
		if len(answer) > 2 {
			see(snapshot(answer[2:]))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// snapshot returns what the answer to a watch means.
func snapshot(answer []string) kv.Snapshot {
	all := kv.Snapshot{Marker: answer[0], Entries: make(map[string]kv.Entry, len(answer)/3)}
	for i := 1; i+2 < len(answer); i += 3 {
		all.Entries[answer[i]] = entry(answer[i+1], answer[i+2])
	}
	return all
}

// Close implements kv.Store. It ends what is still under way.
func (s *store) Close() error {
	s.cancel()
	s.wg.Wait()
	err := s.pool.Close()
	if err != nil {
		return fmt.Errorf("close the connection to %s: %w", s.name, err)
	}
	return nil
}
