package pgtls

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/fencepost/fencepost/proxy/netloop"
)

// The types of records and of handshake messages that a forger sends.
const (
	handshakeRecord = 22
	dataRecord      = 23

	finishedMessage  = 20
	keyUpdateMessage = 24
)

// forger is a client that sends records of TLS 1.3 which no library would send.
type forger struct {
	below  netloop.Conn
	secret []byte // of its traffic
	cipher cipher.AEAD
	nonce  []byte // of the first record under secret
	number uint64 // of the next record under secret
}

// forge returns a forger, and Fencepost's end.
func forge(t *testing.T) (*forger, *Conn) {
	t.Helper()
	var keys bytes.Buffer
	f := &forger{}
	client, ours := pairOver(t, func(c netloop.Conn) netloop.Conn { f.below = c; return c }, &keys)
	if suite := client.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		t.Skipf("without AES in the processor, TLS chooses %s, which this test cannot forge", tls.CipherSuiteName(suite))
	}
	for line := range bytes.Lines(keys.Bytes()) {
		var random, secret string
		if n, _ := fmt.Sscanf(string(line), "CLIENT_TRAFFIC_SECRET_0 %s %s", &random, &secret); n < 2 {
			continue
		}
		first, err := hex.DecodeString(secret)
		if err != nil {
			t.Fatal(err)
		}
		f.use(t, first)
	}
	return f, ours
}

// use has the records that follow encrypted under a secret (RFC 8446, 7.3).
func (f *forger) use(t *testing.T, secret []byte) {
	t.Helper()
	block, err := aes.NewCipher(expand(t, secret, "key", 16))
	if err != nil {
		t.Fatal(err)
	}
	f.secret, f.number, f.nonce = secret, 0, expand(t, secret, "iv", 12)
	if f.cipher, err = cipher.NewGCM(block); err != nil {
		t.Fatal(err)
	}
}

// expand is HKDF-Expand-Label with no context (RFC 8446, 7.1).
func expand(t *testing.T, secret []byte, label string, length int) []byte {
	t.Helper()
	info := fmt.Appendf([]byte{0, byte(length), byte(len("tls13 " + label))}, "tls13 %s\x00", label)
	out, err := hkdf.Expand(sha256.New, secret, string(info), length)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// record returns a record (RFC 8446, 5.2).
func (f *forger) record(typ byte, content ...byte) []byte {
	head := binary.BigEndian.AppendUint16([]byte{dataRecord, 3, 3}, uint16(len(content)+1+f.cipher.Overhead()))
	nonce := bytes.Clone(f.nonce)
	binary.BigEndian.PutUint64(nonce[4:], binary.BigEndian.Uint64(nonce[4:])^f.number)
	f.number++
	return f.cipher.Seal(head, nonce, append(content, typ), head)
}

// update returns a record that changes the forger's keys, and asks for new ones of the peer's.
func (f *forger) update(t *testing.T) []byte {
	t.Helper()
	r := f.record(handshakeRecord, keyUpdateMessage, 0, 0, 1, 1)
	f.use(t, expand(t, f.secret, "traffic upd", sha256.Size))
	return r
}

// TestAFloodOfRecordsHoldsUpNoLoop: records that hold little, or only change keys, are read some at a time, and the
// event loop leaves the rest to the goroutine that waits.
func TestAFloodOfRecordsHoldsUpNoLoop(t *testing.T) {
	t.Parallel()
	const bytesSent, updates = 100, 10 // updates after each byte
	f, ours := forge(t)
	var flood []byte
	for range bytesSent {
		flood = append(flood, f.record(dataRecord, 'x')...)
		for range updates {
			flood = append(flood, f.update(t)...)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, f.below) }() // the peer's new keys
	written := make(chan error, 1)
	go func() {
		_, err := f.below.Write(flood)
		written <- err
	}()
	for ours.below.Received()+uint64(ours.below.Unread()) < 3*maxRecords*27 { // more records than are read at once
		time.Sleep(time.Millisecond)
	}
	s := &server{conn: ours, room: make([]byte, 1000), got: make(chan []byte, bytesSent)}
	calls, got := 0, 0
	_ = ours.SetReadDeadline(time.Now().Add(time.Minute))
	c := checked{s, make(chan error), func(stay bool) bool {
		calls++
		if ours.in.ended > maxRecords {
			t.Errorf("%d records were read at once", ours.in.ended)
		}
		if s.err != nil {
			t.Error(s.err)
		}
		for len(s.got) > 0 {
			got += len(<-s.got)
		}
		return stay && got < bytesSent
	}}
	for got < bytesSent {
		left, err := ours.OnReadable(c)
		if left {
			err = within(t, c.over)
		}
		if err != nil || s.err != nil {
			t.Fatal(err, s.err)
		}
	}
	if err := within(t, written); err != nil {
		t.Fatal(err)
	}
	if least := bytesSent * updates / maxRecords; calls < least {
		t.Errorf("all was read in %d calls, want %d or more", calls, least)
	}
}

// checked is a server whose calls are looked at.
type checked struct {
	*server
	over  chan error
	check func(stay bool) bool // returns what Serve returns
}

func (c checked) Serve() bool      { return c.check(c.server.Serve()) }
func (c checked) Resume(err error) { go func() { c.over <- err }() }

// TestAnErrorAfterTheLastBytesIsServed, also one that a tls.Conn returns only once.
func TestAnErrorAfterTheLastBytesIsServed(t *testing.T) {
	t.Parallel()
	f, ours := forge(t)
	s := &server{conn: ours, room: make([]byte, 100), got: make(chan []byte, 10)}
	done := s.run()
	if _, err := f.below.Write(append(f.record(dataRecord, 'x'), f.record(handshakeRecord, finishedMessage, 0, 0, 0)...)); err != nil {
		t.Fatal(err)
	}
	if got := within(t, s.got); string(got) != "x" {
		t.Fatalf("%q came", got)
	}
	if err := within(t, done); err == nil || err == io.EOF {
		t.Errorf("%v, want what is wrong with the message", err)
	}
}
