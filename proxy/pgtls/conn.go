package pgtls

import (
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/fencepost/fencepost/proxy/netloop"
)

const (
	// maxRecord is the most that is put into one TLS record for a client, in bytes. Postgres flushes by this
	// size, and programs that use libpq's asynchronous calls rely on it: a longer record is read in two
	// pieces, and nothing wakes them for the second.
	maxRecord = 8192
	// longestRecord is the most that TLS allows in a record, in bytes (RFC 8446, 5.1).
	longestRecord = 16 << 10
	// sendAt is how many encrypted bytes are collected before they are sent.
	sendAt = 32 << 10
	// alertTime bounds how long CloseWrite waits for a peer that does not read.
	alertTime = time.Second
)

// Conn is a connection under TLS, its handshake done. It is a netloop.Conn like the one below it, whose event loop it
// uses: what arrives is decrypted, and what is sent is encrypted, without waiting.
//
// Written and Received count the bytes below TLS.
type Conn struct {
	*tls.Conn
	in     *recordReader
	out    *recordWriter
	below  netloop.Conn
	reader netloop.Reader // of OnReadable
	chunk  int            // the most that one record holds
	server []byte         // the certificate of the server's end, in DER
	more   bool           // the last read filled its buffer: decoded bytes may be left
	found  bool           // Unread found one, and keeps it
	kept   [1]byte
	late   error     // comes after what the last TryRead has returned. A tls.Conn does not return each error again
	much   bool      // the last TryRead has left something because of maxRecords
	began  time.Time // see Began
}

var _ netloop.Conn = (*Conn)(nil)

// records lies below a tls.Conn.
type records struct {
	netloop.Conn
	in  *recordReader
	out *recordWriter
}

func newRecords(conn netloop.Conn, first []byte) *records {
	return &records{conn, &recordReader{below: conn, ahead: first}, &recordWriter{below: conn}}
}

func (r *records) Read(b []byte) (int, error)  { return r.in.Read(b) }
func (r *records) Write(b []byte) (int, error) { return r.out.Write(b) }

// SetWriteDeadline does nothing. A tls.Conn sets one for its alerts, but no Write of a recordWriter waits once the
// handshake is done.
func (r *records) SetWriteDeadline(time.Time) error { return nil }

// Close closes the connection below. What was encrypted is sent as far as the socket takes it.
func (r *records) Close() error {
	_ = r.out.push()
	return r.Conn.Close()
}

// newConn wraps t, which speaks over r and has done its handshake. chunk is the most that one record is to hold.
func newConn(t *tls.Conn, r *records, server []byte, chunk int) *Conn {
	r.out.collect = true
	return &Conn{Conn: t, in: r.in, out: r.out, below: r.Conn, server: server, chunk: chunk}
}

// Read is like that of any connection. It must not be called by two goroutines at once.
func (c *Conn) Read(b []byte) (int, error) {
	if c.found && len(b) > 0 {
		return c.takeKept(b), nil
	}
	n, err := c.Conn.Read(b)
	c.more = n > 0 && n == len(b)
	return n, err
}

// takeKept reads the byte that Unread has found, and what is decoded after it.
func (c *Conn) takeKept(b []byte) (n int) {
	c.found = false
	n = copy(b, c.kept[:])
	n += c.decoded(b[n:]) // all at once, however often Unread is called
	c.more = n == len(b)
	return n
}

// TryRead implements netloop.Conn. It reads as many records as there is room for, up to maxRecords.
func (c *Conn) TryRead(b []byte) (n int, err error) {
	if err, c.late = c.late, nil; err != nil {
		return 0, err
	}
	before := c.began
	if before.IsZero() {
		before = c.in.tries
	}
	left := c.left()
	if c.began = c.in.try(); c.began.IsZero() && left {
		c.began = before // it was decoded by the last TryRead, or by one before
	}
	if c.found && len(b) > 0 {
		n = c.takeKept(b)
	}
	for n < len(b) && err == nil && (n == 0 || !c.in.over()) {
		var k int
		k, err = c.Conn.Read(b[n:])
		n += k
	}
	c.much = c.in.stopped()
	c.in.tried()
	c.more = n == len(b)
	_ = c.out.push() // what TLS itself has answered; an error is that of the next write, too
	if errors.Is(err, errNothing) {
		err = netloop.ErrAgain
	}
	if n == 0 {
		return 0, err
	}
	if err != netloop.ErrAgain {
		c.late = err
	}
	return n, nil
}

// OnReadable implements netloop.Conn. It is also over when a TryRead has left something because of maxRecords.
func (c *Conn) OnReadable(r netloop.Reader) (left bool, err error) {
	c.reader = r
	return c.below.OnReadable((*readerBelow)(c))
}

// readerBelow serves the connection below a Conn, for the Conn's reader.
type readerBelow Conn

// Serve implements netloop.Reader.
func (c *readerBelow) Serve() (stay bool) {
	return c.reader.Serve() && !c.much && (c.late == nil || c.reader.Serve())
}

// Resume implements netloop.Reader.
func (c *readerBelow) Resume(err error) { c.reader.Resume(err) }

// decoded reads what has been decoded, and nothing from the connection.
func (c *Conn) decoded(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	c.in.dry = true
	n, _ := c.Conn.Read(b)
	c.in.dry = false
	return n
}

// Unread returns 0 only if nothing of the peer's has arrived that Read has not
// returned: not in the socket, not as a part of a record, not decoded. Only the
// goroutine that reads may call it.
func (c *Conn) Unread() int {
	if c.left() || c.in.pending() {
		return 1
	}
	return c.below.Unread()
}

// left reports whether decoded bytes are left.
func (c *Conn) left() bool {
	if c.more && !c.found {
		c.found = c.decoded(c.kept[:]) > 0
		c.more = c.found // there may be more after it
	}
	return c.found
}

// Began returns a time at or before which a part of what the last TryRead returned had arrived, if that was before the
// call. Otherwise it is zero.
func (c *Conn) Began() time.Time { return c.began }

// NetConn returns the connection below TLS.
func (c *Conn) NetConn() net.Conn { return c.below }

// Loop implements netloop.Conn.
func (c *Conn) Loop() netloop.Loop { return c.below.Loop() }

// PeerEnded implements netloop.Conn. It is closed at the end of the stream below TLS.
func (c *Conn) PeerEnded() <-chan struct{} { return c.below.PeerEnded() }

// Written implements netloop.Conn.
func (c *Conn) Written() uint64 { return c.below.Written() }

// Received implements netloop.Conn.
func (c *Conn) Received() uint64 { return c.below.Received() }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error { return c.below.SetDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.below.SetWriteDeadline(t) }

// Write sends b in records of at most c.chunk bytes.
func (c *Conn) Write(b []byte) (n int, err error) { return c.write(b, c.out.flush) }

// TryWrite implements netloop.Conn.
func (c *Conn) TryWrite(b []byte) (n int, err error) {
	if err := c.out.push(); err != nil {
		return 0, err
	}
	return c.write(b, c.out.push)
}

// write encrypts b, and calls send whenever much is encrypted, and at the end.
func (c *Conn) write(b []byte, send func() error) (n int, err error) {
	for n < len(b) {
		k, err := c.Conn.Write(b[n:min(len(b), n+c.chunk)])
		if n += k; err != nil {
			return n, err
		}
		if n < len(b) && c.out.size() < sendAt {
			continue
		}
		if err := send(); err != nil {
			return n, err
		}
	}
	if len(b) == 0 {
		return 0, send()
	}
	return n, nil
}

// CloseWrite ends the writing side: by close_notify, and below it by the end of
// the stream.
func (c *Conn) CloseWrite() error {
	err := c.Conn.CloseWrite()
	if c.out.push() == netloop.ErrAgain {
		_ = c.below.SetWriteDeadline(time.Now().Add(alertTime))
		_ = c.out.flush() // a peer that does not read does not get it
	}
	return errors.Join(err, c.below.CloseWrite())
}
