package pgtls

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// Stream is what TLS can lie above, and what a connection under TLS is itself.
type Stream interface {
	net.Conn

	// CloseWrite ends the writing side; what was written still arrives.
	CloseWrite() error

	// Unread returns how many bytes of the peer's have arrived and were not read. It
	// is 0 only if there are none. What cannot be known counts as pending. Only the
	// goroutine that reads may call it.
	Unread() int
}

var _ Stream = (*Conn)(nil)

// maxRecord is the most that is put into one TLS record for a client, in bytes.
// Postgres flushes by this size, and programs that use libpq's asynchronous
// calls rely on it: a longer record is read in two pieces, and nothing wakes
// them for the second.
const maxRecord = 8192

// Closing a TLS connection says so to the peer, which must not take longer than
// this: alertTime while the other direction is still of use, closeTime when the
// connection ends. A peer that does not read is not told.
const (
	alertTime = time.Second
	closeTime = 20 * time.Millisecond
)

// recordHeaderLen is the length of a TLS record's header; its last two bytes
// are the length of what follows.
const recordHeaderLen = 5

// recordConn lies below a tls.Conn and hands it the peer's bytes at most up to
// the end of one record. So all that the tls.Conn holds back is that record's
// rest, and whether anything is pending can be told.
type recordConn struct {
	Stream
	ahead   []byte    // read past the end of a record
	aheadAt time.Time // when ahead was read
	head    [recordHeaderLen]byte
	have    int       // bytes of head that were handed out; 0 between records
	left    int       // bytes of the record that are still to come, once head is whole
	began   time.Time // when the present record began to come, if that was before the present Read; zero otherwise
	dry     bool      // Read returns nothing for now
	closing atomic.Bool
}

func (c *recordConn) Read(b []byte) (int, error) {
	if c.dry {
		return 0, os.ErrDeadlineExceeded // a tls.Conn survives that
	}
	if c.have == 0 {
		c.began = time.Time{}
		if len(c.ahead) > 0 {
			c.began = c.aheadAt
		}
	}
	defer c.stamp()
	if len(c.ahead) == 0 {
		n, err := c.Stream.Read(b)
		m := c.advance(b[:n])
		if m < n {
			c.ahead, c.aheadAt, err = append([]byte(nil), b[m:n]...), time.Now(), nil
		}
		return m, err
	}
	b = b[:min(len(b), len(c.ahead))]
	n := c.advance(c.ahead[:len(b)])
	copy(b, c.ahead[:n])
	if c.ahead = c.ahead[n:]; len(c.ahead) == 0 {
		c.ahead = nil
	}
	return n, nil
}

// stamp follows a Read.
func (c *recordConn) stamp() {
	if c.have > 0 && c.began.IsZero() {
		c.began = time.Now()
	}
}

// advance counts b as handed out, up to the end of the record, and returns how
// many bytes that is.
func (c *recordConn) advance(b []byte) int {
	n := 0
	for n < len(b) {
		if c.have < recordHeaderLen {
			k := copy(c.head[c.have:], b[n:])
			c.have, n = c.have+k, n+k
			if c.have < recordHeaderLen {
				return n
			}
			c.left = int(binary.BigEndian.Uint16(c.head[3:]))
		}
		k := min(c.left, len(b)-n)
		c.left, n = c.left-k, n+k
		if c.left == 0 {
			c.have = 0
			return n
		}
	}
	return n
}

// SetWriteDeadline bounds how long an alert may take: tls.Conn gives its own
// five seconds.
func (c *recordConn) SetWriteDeadline(t time.Time) error {
	most := alertTime
	if c.closing.Load() {
		most = closeTime
	}
	if limit := time.Now().Add(most); t.After(limit) {
		t = limit
	}
	return c.Stream.SetWriteDeadline(t)
}

// Conn is a connection under TLS, its handshake done.
type Conn struct {
	*tls.Conn
	records *recordConn
	chunk   int    // the most that one record holds, 0 for what TLS allows
	server  []byte // the certificate of the server's end, in DER
	more    bool   // the last Read filled its buffer: decoded bytes may be left
	found   bool   // Unread found one, and keeps it
	kept    [1]byte
}

// newConn wraps t, which speaks over records.
func newConn(t *tls.Conn, records *recordConn, server []byte, chunk int) *Conn {
	return &Conn{Conn: t, records: records, server: server, chunk: chunk}
}

// Read is like that of any connection. It must not be called by two goroutines
// at once.
func (c *Conn) Read(b []byte) (int, error) {
	if c.found && len(b) > 0 {
		c.found = false
		n := copy(b, c.kept[:])
		n += c.decoded(b[n:]) // all at once, however often Unread is called
		c.more = n == len(b)
		return n, nil
	}
	n, err := c.Conn.Read(b)
	c.more = n > 0 && n == len(b)
	return n, err
}

// decoded reads what has been decoded, and nothing from the connection.
func (c *Conn) decoded(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	c.records.dry = true
	n, _ := c.Conn.Read(b)
	c.records.dry = false
	return n
}

// Unread returns 0 only if nothing of the peer's has arrived that Read has not
// returned: not in the socket, not as a part of a record, not decoded. Only the
// goroutine that reads may call it.
func (c *Conn) Unread() int {
	if c.more && !c.found {
		c.found = c.decoded(c.kept[:]) > 0
		c.more = c.found // there may be more after it
	}
	if c.found || c.records.have > 0 || len(c.records.ahead) > 0 {
		return 1
	}
	return c.records.Unread()
}

// Began returns a time at which a part of what the last Read returned had arrived, if the rest came later.
// Otherwise it is zero.
func (c *Conn) Began() time.Time { return c.records.began }

// NetConn returns the connection below TLS.
func (c *Conn) NetConn() net.Conn { return c.records.Stream }

// Write sends b in records of at most c.chunk bytes.
func (c *Conn) Write(b []byte) (n int, err error) {
	for c.chunk > 0 && len(b)-n > c.chunk {
		k, err := c.Conn.Write(b[n : n+c.chunk])
		n += k
		if err != nil {
			return n, err
		}
	}
	k, err := c.Conn.Write(b[n:])
	return n + k, err
}

// CloseWrite ends the writing side: by close_notify, and below it by the end of
// the stream.
func (c *Conn) CloseWrite() error {
	err := c.Conn.CloseWrite()
	return errors.Join(err, c.records.CloseWrite())
}

// Close ends the connection, also under a Write that blocks, and waits for
// nobody.
func (c *Conn) Close() error {
	c.records.closing.Store(true)
	_ = c.records.SetWriteDeadline(time.Now().Add(closeTime)) // of a Write that blocks
	return c.Conn.Close()
}
