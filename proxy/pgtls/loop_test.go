package pgtls

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fencepost/fencepost/proxy/netloop"
)

// server reads from a connection in the event loop, into room of its own.
type server struct {
	conn *Conn
	room []byte
	got  chan []byte // each piece that was read
	err  error
	done chan error // has one when the connection has ended
}

func (s *server) Serve() (stay bool) {
	n, err := s.conn.TryRead(s.room)
	if err == netloop.ErrAgain {
		return true
	}
	if s.err = err; err != nil {
		return false
	}
	s.got <- bytes.Clone(s.room[:n])
	return n < len(s.room)
}

// run serves until the connection ends.
func (s *server) run() <-chan error {
	s.done = make(chan error, 1)
	go s.goOn(nil)
	return s.done
}

func (s *server) Resume(err error) { go s.goOn(err) }

func (s *server) goOn(err error) {
	for err == nil && s.err == nil {
		var left bool
		if left, err = s.conn.OnReadable(s); left {
			return
		}
	}
	if err == nil {
		err = s.err
	}
	s.done <- err
}

func within[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing comes")
		panic("unreachable")
	}
}

// TestTheLoopReadsWhatComesUnderTLS, in records of any size that come in pieces of any size, whatever the room, up to the
// end.
func TestTheLoopReadsWhatComesUnderTLS(t *testing.T) {
	t.Parallel()
	for room, longest := range map[int]int{1: 500, 100: 5000, 8192: 60_000, 100_000: 60_000} {
		client, ours := pairUnderTLS(t)
		s := &server{conn: ours, room: make([]byte, room), got: make(chan []byte, 1<<20)}
		done := s.run()
		rng := rand.New(rand.NewPCG(uint64(room), 0))
		var sent, got []byte
		for range 50 {
			part := make([]byte, 1+rng.IntN([]int{10, 300, longest}[rng.IntN(3)]))
			part[0] = byte(rng.IntN(256))
			if _, err := client.Write(part); err != nil {
				t.Fatal(err)
			}
			sent = append(sent, part...)
			if rng.IntN(2) == 0 { // what was sent is served before more comes
				for len(got) < len(sent) {
					got = append(got, within(t, s.got)...)
				}
			}
		}
		if err := client.CloseWrite(); err != nil { // close_notify, and no end of the stream
			t.Fatal(err)
		}
		if err := within(t, done); err != io.EOF {
			t.Fatalf("room for %d: %v, want EOF", room, err)
		}
		for len(s.got) > 0 {
			got = append(got, <-s.got...)
		}
		if !bytes.Equal(got, sent) {
			t.Errorf("room for %d: %d bytes came of %d", room, len(got), len(sent))
		}
	}
}

// inOneWrite hands on what a tls.Conn writes in one piece.
type inOneWrite struct {
	netloop.Conn
	held []byte
	hold bool
}

func (c *inOneWrite) Write(b []byte) (int, error) {
	c.held = append(c.held, b...)
	if c.hold {
		return len(b), nil
	}
	_, err := c.Conn.Write(c.held)
	c.held = nil
	return len(b), err
}

// TestTheEndAfterTheLastBytesIsServed: close_notify comes in the same segment, and nothing after it.
func TestTheEndAfterTheLastBytesIsServed(t *testing.T) {
	t.Parallel()
	var below *inOneWrite
	client, ours := pairOver(t, func(c netloop.Conn) netloop.Conn {
		below = &inOneWrite{Conn: c}
		return below
	})
	s := &server{conn: ours, room: make([]byte, 100), got: make(chan []byte, 10)}
	done := s.run()
	below.hold = true
	if _, err := client.Write([]byte("the last")); err != nil {
		t.Fatal(err)
	}
	below.hold = false
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := within(t, s.got); string(got) != "the last" {
		t.Fatalf("%q came", got)
	}
	if err := within(t, done); err != io.EOF {
		t.Errorf("%v, want EOF", err)
	}
}

// TestAPeerThatDoesNotReadUnderTLS: what TryWrite has taken is sent by the Write that has to follow, in order.
func TestAPeerThatDoesNotReadUnderTLS(t *testing.T) {
	t.Parallel()
	client, ours := pairUnderTLS(t)
	var sent []byte
	for i := byte(0); ; i++ {
		part := bytes.Repeat([]byte{i}, 50_000)
		n, err := ours.TryWrite(part)
		sent = append(sent, part[:n]...)
		if err == netloop.ErrAgain {
			break
		}
		if err != nil || n != len(part) {
			t.Fatalf("%d bytes were taken of %d, %v", n, len(part), err)
		}
	}
	if n, err := ours.TryWrite([]byte("more")); n != 0 || err != netloop.ErrAgain {
		t.Fatalf("a full connection has taken %d bytes, %v", n, err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := ours.Write(nil)
		written <- err
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("other bytes came than were taken: %v", err)
	}
	if err := within(t, written); err != nil {
		t.Fatal(err)
	}
	if n, err := ours.TryWrite([]byte("more")); n != 4 || err != nil {
		t.Errorf("%d bytes were taken, %v", n, err)
	}
	if _, err := io.ReadFull(client, got[:4]); err != nil || string(got[:4]) != "more" {
		t.Errorf("%q came, %v", got[:4], err)
	}
}

// TestAWriteThatBlocksHoldsUpNoReader: a tls.Conn answers a peer that asks for new keys while it reads.
func TestAWriteThatBlocksHoldsUpNoReader(t *testing.T) {
	t.Parallel()
	_, ours := pairUnderTLS(t)
	blocked := make(chan error, 1)
	go func() {
		_, err := ours.Write(make([]byte, 32<<20)) // more than the sockets take
		blocked <- err
	}()
	for ours.out.push() != netloop.ErrAgain { // the Write has begun, and waits
		time.Sleep(time.Millisecond)
	}
	answered := make(chan error, 1)
	go func() {
		var err error
		for n := 0; err == nil && n < 32<<20; n += 100 { // the sockets may still take something
			_, err = ours.out.Write(make([]byte, 100)) // as the answer does
		}
		answered <- err
	}()
	if err := within(t, answered); !errors.Is(err, errUnsent) {
		t.Errorf("%v, want an end of what is kept for a peer that reads nothing", err)
	}
	_ = ours.Close()
	if err := within(t, blocked); err == nil {
		t.Error("the Write has succeeded")
	}
}

// TestPartsOfARecordAreAsOldAsTheFirst: what TryRead returns may have arrived when the first part of its record did.
func TestPartsOfARecordAreAsOldAsTheFirst(t *testing.T) {
	t.Parallel()
	var below *inOneWrite
	client, ours := pairOver(t, func(c netloop.Conn) netloop.Conn {
		below = &inOneWrite{Conn: c}
		return below
	})
	below.hold = true
	if _, err := client.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	record, b := below.held, make([]byte, 10)
	send := func(part []byte) {
		t.Helper()
		if _, err := below.Conn.Write(part); err != nil {
			t.Fatal(err)
		}
		for ours.below.Unread() == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	send(record[:7])
	began := time.Now()
	if n, err := ours.TryRead(b); n != 0 || err != netloop.ErrAgain {
		t.Fatalf("%d bytes, %v", n, err)
	}
	ended := time.Now()
	send(record[7:])
	if n, err := ours.TryRead(b); n != 3 || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if at := ours.Began(); at.Before(began) || at.After(ended) {
		t.Errorf("it has begun at %v, want a time between %v and %v", at, began, ended)
	}
	below.held = nil
	if _, err := client.Write([]byte("abcdef")); err != nil {
		t.Fatal(err)
	}
	send(below.held)
	began = time.Now()
	for i := range 3 {
		if n, err := ours.TryRead(b[:2]); n != 2 || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if at := ours.Began(); i > 0 && (at.Before(began) || at.After(ended)) {
			t.Errorf("what was decoded before has begun at %v, want a time between %v and %v", at, began, ended)
		}
		if i == 0 {
			ended = time.Now()
		}
	}
	below.held = nil
	if _, err := client.Write([]byte("gh")); err != nil {
		t.Fatal(err)
	}
	send(below.held)
	if n, err := ours.TryRead(b); n != 2 || err != nil || !ours.Began().IsZero() {
		t.Errorf("behind a read that left nothing: %d bytes, begun at %v, %v", n, ours.Began(), err)
	}
	send(record[:1]) // of another record
	if n, err := ours.TryRead(b); n != 0 || err != netloop.ErrAgain || !ours.Began().IsZero() {
		t.Errorf("%d bytes, begun at %v, %v", n, ours.Began(), err)
	}
}
