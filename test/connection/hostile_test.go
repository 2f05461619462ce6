package connection

import (
	"bytes"
	"errors"
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
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// header is a message header that claims a length.
func header(typ byte, n uint32) []byte {
	return []byte{typ, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
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

// TestSlowLoris: who sends its startup packet byte by byte has StartupTimeout in all, and not
// for each byte.
func TestSlowLoris(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), func(cfg *proxy.Config) { cfg.StartupTimeout = time.Second })
	slow := wiretest.Dial(t, p.Addr)
	told := fixture.ReadReply(slow, 1)
	packet := Cat([]byte{0, 0, 16, 0, 0, 3, 0, 0}, make([]byte, 4000))
	for len(packet) > 0 && !told.Done() {
		if _, err := slow.Write(packet[:1]); err != nil {
			break
		}
		packet = packet[1:]
		time.Sleep(20 * time.Millisecond)
	}
	if all, _ := told.Wait(); len(packet) == 0 || wiretest.ErrorOf(all) != "08P01" {
		t.Errorf("with %d bytes left to send, the client is told %v, want 08P01", len(packet), all)
	}
}

// heap is what is in use after a collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// TestFloodCostsNoMoreThanItsBytes: a client that sends the smallest of messages
// and reads no answer is stopped, and gets all answers when it reads. It is not
// parallel: it measures the process.
func TestFloodCostsNoMoreThanItsBytes(t *testing.T) {
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	leading(t, p, db)
	const count, most = 30000, 2 << 20
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

// answer reads the byte that answers a request, if the connection has not ended.
func answer(c *wiretest.Conn) {
	_ = c.SetReadDeadline(time.Now().Add(fixture.Patience))
	_, _ = c.Read(make([]byte, 1))
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
