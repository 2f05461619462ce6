package connection

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/stopwatch"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// header is a message header that claims a length.
func header(typ byte, n uint32) []byte {
	return []byte{typ, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

func TestGarbageBeforeTheStartupIsRefused(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	bystander, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db)
	startup := wiretest.Startup("user", pgtest.App, "database", db)
	for name, c := range map[string]struct {
		sent  []byte
		state string // "": the connection is closed without a word
	}{
		"length zero":        {[]byte{0, 0, 0, 0, 0, 3, 0, 0}, ""},
		"length seven":       {[]byte{0, 0, 0, 7, 0, 3, 0, 0}, ""},
		"length minus one":   {[]byte{255, 255, 255, 255, 0, 3, 0, 0}, ""},
		"the least length":   {[]byte{128, 0, 0, 0, 0, 3, 0, 0}, ""},
		"a huge length":      {[]byte{127, 255, 255, 255, 0, 3, 0, 0}, ""},
		"one byte too long":  {[]byte{0, 0, 0x27, 0x15, 0, 3, 0, 0}, ""},
		"HTTP":               {[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), ""},
		"a Query":            {Q("select 1"), ""},
		"zeros":              {make([]byte, 4096), ""},
		"no parameters":      {packet(3 << 16), "08P01"},
		"no terminator":      {packet(3<<16, []byte("user\x00app\x00")...), "08P01"},
		"an unknown request": {packet(80877199), "0A000"},
	} {
		conn := wiretest.Dial(t, p.Addr)
		conn.Send(c.sent)
		if said := wiretest.ErrorOf(conn.Rest()); said != c.state {
			t.Errorf("%s: %q, want %q", name, said, c.state)
		}
		if got := fixture.FirstValue(t, bystander.Exec("select 7")); got != "7" {
			t.Errorf("after %s another client read %s", name, got)
		}
	}
	for cut := range startup {
		conn := wiretest.Dial(t, p.Addr)
		conn.Send(startup[:cut])
		if err := conn.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if all := conn.Rest(); len(all) != 0 {
			t.Errorf("%d bytes of a startup packet, then the end: %v", cut, all)
		}
		_ = conn.Close()
	}
	if got := fixture.FirstValue(t, bystander.Exec("select 7")); got != "7" {
		t.Errorf("after all that another client read %s", got)
	}
}

// TestRandomBytesEndOneConnectionOnly sends noise in every phase.
func TestRandomBytesEndOneConnectionOnly(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	bystander := fixture.LeaderConn(t, p, db)
	dice := rand.New(rand.NewPCG(7, 7))
	noise := func() []byte {
		b := make([]byte, 1+dice.IntN(3000))
		for i := range b {
			b[i] = byte(dice.Uint32())
		}
		return b
	}
	for i := range 60 {
		c := wiretest.Dial(t, p.Addr)
		if i%3 > 0 {
			c.Send(wiretest.Startup("user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "w"))
			c.Until('Z')
		}
		if i%3 == 2 { // a type the server knows in front of noise
			c.Send(header("QPBEDCFSdcfHp"[dice.IntN(13)], uint32(4+dice.IntN(600))))
		}
		c.Send(noise())
		if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		c.Rest()
		_ = c.Close()
	}
	if got := fixture.FirstValue(t, bystander.Exec("select 7")); got != "7" {
		t.Errorf("after the noise another client read %s", got)
	}
}

// TestSlowLoris: who sends its startup packet byte by byte holds its place for
// StartupTimeout in all, not for each byte, and nobody else waits meanwhile.
func TestSlowLoris(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	db := pg.Database(t)
	withTimeouts(t, func(timeout time.Duration) bool {
		return slowLoris(t, fixture.NewProxy(t, pg, func(cfg *proxy.Config) { cfg.StartupTimeout = timeout }), db, timeout)
	})
}

// slowLoris reports false if the proxy's timeout is too short for the clients beside the slow one.
func slowLoris(t *testing.T, p *fixture.Proxy, db string, timeout time.Duration) (inTime bool) {
	t.Helper()
	begun, watch := time.Now(), stopwatch.Start(t)
	slow := wiretest.Dial(t, p.Addr)
	ended, answered := make(chan struct{}), make(chan struct{})
	drips := make(chan struct{})
	go func() {
		defer close(drips)
		request := packet(codeSSL)
		for i, x := range Cat(request, []byte{0, 0, 16, 0, 0, 3, 0, 0}, make([]byte, 1000)) {
			if i == len(request) { // what comes before the answer is refused at once
				select {
				case <-answered:
				case <-ended:
					return
				}
			}
			if _, err := slow.Write([]byte{x}); err != nil {
				return
			}
			select {
			case <-ended:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	defer func() { close(ended); <-drips }()
	other := wiretest.Dial(t, p.Addr)
	other.Send(wiretest.Startup("user", pgtest.App, "database", db))
	if !begins(other) {
		return false
	}
	if got := fixture.FirstValue(t, other.Exec("select 7")); got != "7" {
		t.Errorf("another client read %s", got)
	}
	if got, ok := answer(slow); !ok || got != 'N' {
		return false
	}
	close(answered)
	m, err := slow.Next()
	if took := time.Since(begun); err != nil || m.Fields()['C'] != "08P01" || took < timeout || watch.Late(t, took, timeout+10*time.Second) {
		t.Errorf("after %v: %v, %v", took, m, err)
	}
	return true
}

// heap is what is in use after a collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// TestClaimedLengthsCostNothing is not parallel: it measures the process. Both
// ends of each connection are in it.
func TestClaimedLengthsCostNothing(t *testing.T) {
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	claims := map[string]func() *wiretest.Conn{
		"half a header": func() *wiretest.Conn {
			c := wiretest.Dial(t, p.Addr)
			c.Send([]byte{0, 0, 0x27})
			return c
		},
		"the longest startup packet": func() *wiretest.Conn {
			c := wiretest.Dial(t, p.Addr)
			c.Send([]byte{0, 0, 0x27, 0x10, 0, 3, 0, 0, 'u'})
			return c
		},
	}
	for name, dial := range claims {
		const clients, each = 200, 24 << 10
		measure(t, name, clients, each, dial)
	}
	for _, typ := range []byte("QPBFd") {
		for _, user := range []string{pgtest.App, pgtest.Superuser} {
			if typ == 'F' && user == pgtest.App {
				continue // refused before the rest has come
			}
			const clients, each = 10, 100 << 10
			measure(t, fmt.Sprintf("600 MiB of %c as %s", typ, user), clients, each, func() *wiretest.Conn {
				c, _ := wiretest.Connect(t, p.Addr, "user", user, "database", db)
				c.Send(header(typ, 600<<20), []byte(strings.Repeat("x", 1000)))
				return c
			})
		}
	}
}

// TestFloodCostsNoMoreThanItsBytes: a client that sends the smallest of messages
// and reads no answer is stopped, and gets all answers when it reads. It is not
// parallel: it measures the process.
func TestFloodCostsNoMoreThanItsBytes(t *testing.T) {
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	leading(t, p, db)
	const count, most = 150000, 11 << 20
	for _, user := range []string{pgtest.App, pgtest.Superuser} {
		c, _ := wiretest.Connect(t, p.Addr, "user", user, "database", db)
		before := heap()
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write(bytes.Repeat(Sync(), count))
			wrote <- err
		}()
		after := before
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			after = max(after, heap())
		}
		if after > before+most {
			t.Errorf("as %s: a flood costs %d kB", user, (after-before)>>10)
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Minute)) // not that of connecting, for what is still being written
		if _, err := io.CopyN(io.Discard, c, count*int64(len("Z\x00\x00\x00\x05I"))); err != nil {
			t.Errorf("as %s: not all was answered: %v", user, err)
		}
		if err := <-wrote; err != nil {
			t.Errorf("as %s: %v", user, err)
		}
		if got := fixture.FirstValue(t, c.Exec("select 7")); got != "7" {
			t.Errorf("as %s: after the flood the client read %s", user, got)
		}
	}
}

// TestFloodInsideCopyIsRelayed: the server ignores these messages, and Fencepost keeps none of them.
func TestFloodInsideCopyIsRelayed(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	c := fixture.LeaderConn(t, p, db)
	fixture.MustExec(t, c, "create table t (v text)")
	c.Send(Q("copy t from stdin"))
	c.Until('G')
	c.Send(wiretest.CopyData("x\n"), bytes.Repeat(Sync(), 20000), wiretest.CopyDone())
	if all := c.Until('Z'); wiretest.ErrorOf(all) != "" {
		t.Errorf("the COPY is answered by %v", all)
	}
	if got := fixture.FirstValue(t, c.Exec("select count(*) from t")); got != "1" {
		t.Errorf("%s rows, want 1", got)
	}
}

// measure checks that each of n clients costs less than each bytes, all told.
func measure(t *testing.T, name string, n int, each uint64, dial func() *wiretest.Conn) {
	t.Helper()
	first := dial() // what only the first of its kind costs is not measured
	defer first.Close()
	before := heap()
	conns := make([]*wiretest.Conn, n)
	for i := range conns {
		conns[i] = dial()
	}
	last := conns[n-1]
	_ = last.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	var b [1]byte
	if _, err := last.Read(b[:]); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%s: the proxy did not wait for the rest: %v", name, err)
	}
	after := heap()
	if after > before && (after-before)/uint64(n) > each {
		t.Errorf("%s: %d bytes per client, want at most %d", name, (after-before)/uint64(n), each)
	}
	t.Logf("%s: %d kB per client", name, (int64(after)-int64(before))/int64(n)>>10)
	for _, c := range conns {
		_ = c.Close()
	}
}

func TestBadLengthAfterTheStartup(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	fixture.MustExec(t, fixture.LeaderConn(t, p, db), "create table t (v text)")
	for name, bad := range map[string][]byte{
		"length zero": header('Q', 0), "length three": header('P', 3), "negative": header('Q', 0xffffffff), "the least": header('d', 1<<31),
		"1 GiB": header('Q', 1<<30), "a long Sync": header('S', 20000), "a long Execute": header('E', 10001), "a long unknown": header('y', 99999),
	} {
		c := fixture.LeaderConn(t, p, db)
		c.Send(Q("insert into t values ('"+name+"')"), Run("insert into t values ('never')"), bad)
		all := c.Rest()
		// Postgres ends the connection without a word over a length; a message that it
		// does not know is a FATAL.
		want := 2
		if name == "a long unknown" {
			want = 3
		}
		if len(all) < want || all[0].String() != `C "INSERT 0 1\x00"` || all[1].Type != 'Z' || want == 3 && fixture.FatalError(t, all)['C'] != "08P01" {
			t.Errorf("%s: %v; want the answer to what came before, and the end", name, all)
		}
	}
	eventuallyRows(t, pg.Connect(t, pgtest.Superuser, db), "select count(*) filter (where v = 'never') * 100 + count(*) from t", 8)
}

// eventuallyRows waits until every other session of the database but the test's
// own holders is idle, and compares a number then.
func eventuallyRows(t *testing.T, admin *pgx.Conn, sql string, want int) {
	t.Helper()
	var n int
	fixture.Eventually(t, "the backends are at rest", func() bool {
		err := admin.QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = current_database() and usename = 'app' and state <> 'idle'").Scan(&n)
		return err == nil && n == 0
	})
	if err := admin.QueryRow(t.Context(), sql).Scan(&n); err != nil || n != want {
		t.Errorf("%s is %d, %v; want %d", sql, n, err, want)
	}
}

// TestCutOffClientsLeaveNoCompletedBatch: the client dies in the middle of a
// message, of a batch, of a transaction or of COPY data. The server sees the
// same end, and commits nothing of it.
func TestCutOffClientsLeaveNoCompletedBatch(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	fixture.MustExec(t, fixture.LeaderConn(t, p, db), "create table t (v text)")
	admin := pg.Connect(t, pgtest.Superuser, db)
	batch := Batch(Run("insert into t values ('x')"))
	for _, c := range map[string]struct {
		first, then []byte
		until       byte
	}{
		"half a Query":          {nil, Q("insert into t values ('x')")[:20], 0},
		"half a header":         {nil, []byte{'Q', 0, 0}, 0},
		"a batch without Sync":  {nil, batch[:len(batch)-5], 0},
		"half a Sync":           {nil, batch[:len(batch)-1], 0},
		"half a Bind":           {nil, Cat(Parse("", "insert into t values ($1)"), Bind("", "", strings.Repeat("x", 50000))[:30000]), 0},
		"a transaction":         {Cat(Q("begin")), Q("insert into t values ('x')"), 'Z'},
		"COPY data":             {Q("copy t from stdin"), wiretest.CopyData("x\n"), 'G'},
		"half of COPY data":     {Q("copy t from stdin"), wiretest.CopyData(strings.Repeat("x\n", 20000))[:30000], 'G'},
		"an open pipeline":      {nil, Cat(Run("begin"), Run("insert into t values ('x')"), Run("savepoint s"), wiretest.Flush()), 0},
		"an unfinished COMMIT":  {Cat(Q("begin")), Cat(Q("insert into t values ('x')"), Q("commit")[:8]), 'Z'},
		"goodbye mid-way":       {Cat(Q("begin")), Cat(Q("insert into t values ('x')"), wiretest.Terminate()), 'Z'},
		"goodbye before a Sync": {nil, Cat(batch[:len(batch)-5], wiretest.Terminate()), 0},
	} {
		for _, reset := range []bool{false, true} {
			conn := fixture.LeaderConn(t, p, db)
			if c.first != nil {
				conn.Send(c.first)
				conn.Until(c.until)
			}
			conn.Send(c.then)
			if reset {
				_ = conn.Conn.(*net.TCPConn).SetLinger(0)
			}
			_ = conn.Close()
		}
	}
	fixture.Eventually(t, "all backends of the dead are gone", func() bool {
		var n int
		err := admin.QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = current_database() and usename = 'app'").Scan(&n)
		return err == nil && n == 1 // of the one that made the table
	})
	eventuallyRows(t, admin, "select count(*) from t", 0)
}

func TestTooManyClients(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p := fixture.NewProxy(t, pg, func(cfg *proxy.Config) { cfg.MaxConnections = 2 })
	db := pg.Database(t)
	admin := pg.Connect(t, pgtest.Superuser, db)
	one, key := keyed(t, p.Addr, "user", pgtest.App, "database", db)
	two, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db)
	for _, requests := range [][]uint32{nil, {codeSSL}} {
		var f map[byte]string
		fixture.Eventually(t, "the third client to ask in time", func() bool {
			c := wiretest.Dial(t, p.Addr)
			defer c.Close()
			for _, code := range requests {
				_, _ = c.Write(packet(code))
				answer(c)
			}
			_, _ = c.Write(wiretest.Startup("user", pgtest.App, "database", db))
			all := c.Rest()
			if state := wiretest.ErrorOf(all); state == "08P01" || state == "" {
				return false // its startup packet came too late for one of too many
			}
			f = fixture.FatalError(t, all)
			return true
		})
		if f['C'] != "53300" || f['M'] != "sorry, too many clients already" || !strings.Contains(f['H'], "limits.max_connections") {
			t.Errorf("the third client: %v, want 53300 with a hint", f)
		}
	}
	canceled := fixture.ReadReply(one, 1)
	one.Send(Q("select pg_sleep(600)"))
	fixture.AwaitBackend(t, admin, "wait_event = 'PgSleep'")
	fixture.Eventually(t, "a cancel request that came in time to be answered", func() bool {
		c := wiretest.Dial(t, p.Addr)
		defer c.Close()
		_, _ = c.Write(packet(codeCancel, key...))
		_, _ = io.Copy(io.Discard, c)
		return canceled.Done()
	})
	if all, _ := canceled.Wait(); wiretest.ErrorOf(all) != "57014" {
		t.Errorf("a cancel while there are too many clients: %v, want 57014", all)
	}
	two.Send(wiretest.Terminate())
	two.Rest()
	_ = two.Close()
	fixture.Eventually(t, "a place is free", func() bool {
		c := wiretest.Dial(t, p.Addr)
		defer c.Close()
		c.Send(wiretest.Startup("user", pgtest.App, "database", db))
		m, err := c.Next()
		return err == nil && m.Type == 'R'
	})
}
