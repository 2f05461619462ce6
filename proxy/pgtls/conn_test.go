package pgtls

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/netlooptest"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/stopwatch"
	"github.com/fencepost/fencepost/proxy/netloop"
)

// pieces is a connection whose reads return what is in it, in pieces of any
// size.
type pieces struct {
	netloop.Conn
	left []byte
	rng  *rand.Rand
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:1+p.rng.IntN(len(b))], p.left)
	p.left = p.left[n:]
	return n, nil
}

// TestRecordsAreHandedOutOneByOne: whatever the pieces in which they come and are
// asked for, no read goes over the end of a record, and no byte is lost.
func TestRecordsAreHandedOutOneByOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var all []byte
		ends := map[int]bool{0: true}
		for range 1 + rng.IntN(20) {
			size := []int{0, 1, 4, 5, 6, 17, rng.IntN(300), 16384}[rng.IntN(8)]
			all = append(all, 23, 3, 3)
			all = binary.BigEndian.AppendUint16(all, uint16(size))
			all = append(all, bytes.Repeat([]byte{byte(size)}, size)...)
			ends[len(all)] = true
		}
		c := &recordReader{below: &pieces{left: all, rng: rng}}
		var got []byte
		for {
			b := make([]byte, 1+rng.IntN(2000))
			n, err := c.Read(b)
			for i := len(got) + 1; i < len(got)+n; i++ {
				if ends[i] {
					t.Fatalf("seed %d: a read of %d bytes at %d goes over the end of a record at %d", seed, n, len(got), i)
				}
			}
			got = append(got, b[:n]...)
			if between := c.have == 0; between != ends[len(got)] {
				t.Fatalf("seed %d: after %d bytes it is between records: %t", seed, len(got), between)
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, all) {
			t.Fatalf("seed %d: %d bytes came of %d", seed, len(got), len(all))
		}
	}
}

// pairUnderTLS is a client's end, and the end that Fencepost would have.
func pairUnderTLS(t *testing.T) (client *tls.Conn, ours *Conn) {
	t.Helper()
	return pairOver(t, func(c netloop.Conn) netloop.Conn { return c })
}

// pairOver is pairUnderTLS with a connection in between, which the client writes to. Keys of the client's are logged to
// keys.
func pairOver(t *testing.T, wrap func(netloop.Conn) netloop.Conn, keys ...io.Writer) (client *tls.Conn, ours *Conn) {
	t.Helper()
	ca := pgtest.NewAuthority(t)
	pair := ca.Issue(t, pgtest.Subject{Name: "it", Hosts: []string{"localhost"}})
	side, err := NewClients(ClientsConfig{CertFile: pair.CertFile, KeyFile: pair.KeyFile})
	if err != nil {
		t.Fatal(err)
	}
	far, near := netlooptest.Pair(t)
	client = tls.Client(wrap(far), &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", KeyLogWriter: io.MultiWriter(keys...)})
	shaken := make(chan error, 1)
	go func() { shaken <- client.Handshake() }()
	if ours, err = side.Accept(near); err != nil {
		t.Fatal(err)
	}
	if err := <-shaken; err != nil {
		t.Fatal(err)
	}
	return client, ours
}

// TestUnreadUnderTLS: it is 0 exactly when everything that arrived was read,
// whatever the buffers were, and asking loses nothing.
func TestUnreadUnderTLS(t *testing.T) {
	t.Parallel()
	client, ours := pairUnderTLS(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		var sent []byte
		for range 1 + rng.IntN(3) {
			part := bytes.Repeat([]byte{byte(round)}, 1+rng.IntN(1500))
			part[0] = ^byte(round)
			if _, err := client.Write(part); err != nil {
				t.Fatal(err)
			}
			sent = append(sent, part...)
		}
		var got []byte
		for len(got) < len(sent) {
			b := make([]byte, []int{1, 7, 1 + rng.IntN(1500), len(sent) - len(got), 20000}[rng.IntN(5)])
			n, err := ours.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, b[:n]...)
			// All of it is on its way through one socket of this machine.
			if pending := ours.Unread() > 0; pending && len(got) == len(sent) {
				t.Fatalf("round %d: all %d bytes were read, and some are said to be pending", round, len(sent))
			} else if !pending && len(got) < len(sent) && !arrives(ours) {
				t.Fatalf("round %d: %d of %d bytes were read, and none is said to be pending", round, len(got), len(sent))
			}
		}
		if !bytes.Equal(got, sent) {
			t.Fatalf("round %d: what was read is not what was sent", round)
		}
	}
}

// arrives waits for bytes that the network still has.
func arrives(c *Conn) bool {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		if c.Unread() > 0 {
			return true
		}
	}
	return false
}

// TestWhatUnreadHasFoundIsReadWithWhatFollows: a Read that returned one byte would have the caller ask again.
func TestWhatUnreadHasFoundIsReadWithWhatFollows(t *testing.T) {
	t.Parallel()
	client, ours := pairUnderTLS(t)
	sent := bytes.Repeat([]byte("abcd"), 250) // one record
	if _, err := client.Write(sent); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for _, want := range []int{300, 300, 1, 399} {
		b := make([]byte, want)
		n, err := ours.Read(b)
		if err != nil || n != want {
			t.Fatalf("%d of %d bytes were read, %v", n, want, err)
		}
		got = append(got, b...)
		if pending := ours.Unread() > 0; pending != (len(got) < len(sent)) {
			t.Fatalf("after %d of %d bytes, some are pending: %t", len(got), len(sent), pending)
		}
	}
	if !bytes.Equal(got, sent) {
		t.Error("other bytes came than were sent")
	}
}

// TestReadUnderTLSSurvivesItsDeadline, in the middle of a record too.
func TestReadUnderTLSSurvivesItsDeadline(t *testing.T) {
	t.Parallel()
	client, ours := pairUnderTLS(t)
	b := make([]byte, 100)
	for i := range 5 {
		_ = ours.SetReadDeadline(time.Unix(1, 0))
		if n, err := ours.Read(b); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read %d, %v", n, err)
		}
		_ = ours.SetReadDeadline(time.Time{})
		if _, err := fmt.Fprint(client, "hello"); err != nil {
			t.Fatal(err)
		}
		if n, err := ours.Read(b); err != nil || string(b[:n]) != "hello" {
			t.Fatalf("round %d: %q, %v", i, b[:n], err)
		}
	}
}

// TestRecordsForClientsAreShort, as those of Postgres: see maxRecord.
func TestRecordsForClientsAreShort(t *testing.T) {
	t.Parallel()
	client, ours := pairUnderTLS(t)
	const much = 100_000
	written := make(chan error, 1)
	go func() {
		_, err := ours.Write(make([]byte, much))
		written <- err
	}()
	const overhead = 64
	for got := 0; got < much; {
		var head [recordHeaderLen]byte
		if _, err := io.ReadFull(client.NetConn(), head[:]); err != nil {
			t.Fatal(err)
		}
		size := int(binary.BigEndian.Uint16(head[3:]))
		if size > maxRecord+overhead || size < 1000 {
			t.Fatalf("a record of %d bytes", size)
		}
		if _, err := io.CopyN(io.Discard, client.NetConn(), int64(size)); err != nil {
			t.Fatal(err)
		}
		got += size
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

// TestClosingWaitsForNoOne: a peer that does not read holds up neither Close nor
// the end of writing.
func TestClosingWaitsForNoOne(t *testing.T) {
	t.Parallel()
	for name, blocked := range map[string]bool{"a full socket": false, "a Write that blocks": true} {
		_, ours := pairUnderTLS(t)
		_ = ours.below.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		written := make(chan struct{})
		fill := func() {
			defer close(written)
			for junk := make([]byte, 1<<20); ; {
				if _, err := ours.below.Write(junk); err != nil { // below TLS: its state stays whole
					return
				}
			}
		}
		if blocked {
			_ = ours.below.SetWriteDeadline(time.Time{})
			go fill()
		} else {
			fill()
			_ = ours.below.SetWriteDeadline(time.Time{})
		}
		begun, watch := time.Now(), stopwatch.Start(t)
		_ = ours.Close()
		if took := time.Since(begun); watch.Late(t, took, 2*time.Second) {
			t.Errorf("%s: Close took %s", name, took)
		}
		<-written
	}
	_, ours := pairUnderTLS(t)
	_ = ours.below.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	for junk := make([]byte, 1<<20); ; {
		if _, err := ours.below.Write(junk); err != nil {
			break
		}
	}
	begun, watch := time.Now(), stopwatch.Start(t)
	_ = ours.CloseWrite()
	if took := time.Since(begun); watch.Late(t, took, 4*time.Second) {
		t.Errorf("CloseWrite took %s", took)
	}
}
