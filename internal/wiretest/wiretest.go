// Package wiretest is a raw client of the PostgreSQL protocol for tests: it sends
// exactly the bytes it is given, in the pieces it is given, and records the server's
// messages.
package wiretest

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// patience is how long a test waits for a peer before it fails.
const patience = time.Minute

// Message is one message of the server.
type Message struct {
	Type byte
	Body []byte
}

// Fields returns the fields of an ErrorResponse or NoticeResponse.
func (m Message) Fields() map[byte]string {
	f := map[byte]string{}
	for b := m.Body; len(b) > 1 && b[0] != 0; {
		end := strings.IndexByte(string(b[1:]), 0)
		if end < 0 {
			break
		}
		f[b[0]] = string(b[1 : 1+end])
		b = b[end+2:]
	}
	return f
}

// String formats the message as a line of a transcript.
func (m Message) String() string {
	switch m.Type {
	case 'E', 'N':
		f := m.Fields()
		s := fmt.Sprintf("%c %s %s %s", m.Type, f['V'], f['C'], f['M'])
		for _, k := range "DHPpqWstcdnFLR" {
			if v, ok := f[byte(k)]; ok {
				s += fmt.Sprintf(" %c=%q", k, v)
			}
		}
		return s
	case 'T':
		return fmt.Sprintf("T %q", withoutOIDs(m.Body))
	case 'A':
		if len(m.Body) >= 4 { // the pid varies
			return fmt.Sprintf("A %q", m.Body[4:])
		}
	}
	return fmt.Sprintf("%c %q", m.Type, m.Body)
}

// withoutOIDs zeroes the object ids of user-defined tables and types, because they
// differ from database to database.
func withoutOIDs(body []byte) []byte {
	const firstUserOID = 16384
	b := append([]byte(nil), body...)
	for rest := b[2:]; len(rest) > 0; {
		end := strings.IndexByte(string(rest), 0)
		if end < 0 || len(rest) < end+19 {
			break
		}
		for _, at := range []int{end + 1, end + 7} {
			if binary.BigEndian.Uint32(rest[at:]) >= firstUserOID {
				binary.BigEndian.PutUint32(rest[at:], 0)
			}
		}
		rest = rest[end+19:]
	}
	return b
}

// Conn is a client's connection, before or after its startup.
type Conn struct {
	net.Conn
	t  testing.TB
	in *bufio.Reader // reads from Conn; nil before the first read
}

// unbuffered reads what a Conn receives.
type unbuffered struct{ c *Conn }

func (u unbuffered) Read(b []byte) (int, error) { return u.c.Conn.Read(b) }

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) { return c.reader().Read(b) }

func (c *Conn) reader() *bufio.Reader {
	if c.in == nil {
		c.in = bufio.NewReader(unbuffered{c})
	}
	return c.in
}

// Dial connects without a startup. An address that is a path is that of a Unix socket.
func Dial(t testing.TB, address string) *Conn {
	t.Helper()
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	c, err := net.DialTimeout(network, address, patience)
	if err != nil {
		t.Fatalf("connect to %s: %v", address, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &Conn{Conn: c, t: t}
}

// Connect starts a session with the parameters (name, value, …) and reads up to the
// first ReadyForQuery. It returns the messages before that.
func Connect(t testing.TB, address string, params ...string) (*Conn, []Message) {
	t.Helper()
	c := Dial(t, address)
	c.Send(Startup(params...))
	return c, c.Until('Z')
}

// SSLRequest returns an SSLRequest.
func SSLRequest() []byte { return []byte{0, 0, 0, 8, 4, 210, 22, 47} }

// Secure switches to TLS: after an SSLRequest, or at once if direct.
func (c *Conn) Secure(cfg *tls.Config, direct bool) {
	c.t.Helper()
	if !direct {
		c.Send(SSLRequest())
		var answer [1]byte
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.ReadFull(c, answer[:]); err != nil || answer[0] != 'S' {
			c.t.Fatalf("the answer to an SSLRequest is %q, %v", answer[:], err)
		}
	}
	secured := tls.Client(c.Conn, cfg)
	_ = c.SetDeadline(time.Now().Add(patience))
	if err := secured.Handshake(); err != nil {
		c.t.Fatalf("TLS handshake: %v", err)
	}
	c.Conn = secured
}

// Startup returns a StartupMessage of protocol 3.0.
func Startup(params ...string) []byte {
	body := binary.BigEndian.AppendUint32(nil, 196608)
	for _, p := range params {
		body = append(append(body, p...), 0)
	}
	body = append(body, 0)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
}

// Send sends the parts in one write.
func (c *Conn) Send(parts ...[]byte) {
	c.t.Helper()
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	if _, err := c.Write(b); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// Write implements net.Conn. Each write may take as long as any other, however old the connection is.
func (c *Conn) Write(b []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(patience))
	return c.Conn.Write(b)
}

// Next reads one message. It returns io.EOF when the peer has closed.
func (c *Conn) Next() (Message, error) {
	var head [5]byte
	if err := c.readFull(head[:]); err != nil {
		if errors.Is(err, io.EOF) || strings.Contains(err.Error(), "reset by peer") {
			return Message{}, io.EOF
		}
		return Message{}, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
	return Message{head[0], body}, c.readFull(body)
}

// readFull fills b. The peer may take as long for it as for anything else.
func (c *Conn) readFull(b []byte) error {
	if c.reader().Buffered() < len(b) {
		_ = c.SetReadDeadline(time.Now().Add(patience))
	}
	_, err := io.ReadFull(c.in, b)
	return err
}

// Until reads up to the first message of that type and returns all of them, including
// that one. A FATAL error or the end of the connection fails the test.
func (c *Conn) Until(typ byte) []Message {
	c.t.Helper()
	var all []Message
	for {
		m, err := c.Next()
		if err != nil {
			c.t.Fatalf("read up to %q: %v; before it: %v", typ, err, all)
		}
		all = append(all, m)
		if m.Type == typ {
			return all
		}
	}
}

// Rest reads until the peer closes.
func (c *Conn) Rest() []Message {
	c.t.Helper()
	var all []Message
	for {
		m, err := c.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			c.t.Fatalf("read to the end: %v; before it: %v", err, all)
		}
		all = append(all, m)
	}
}

// Exec sends a simple Query and reads its replies.
func (c *Conn) Exec(sql string) []Message {
	c.t.Helper()
	c.Send(Query(sql))
	return c.Until('Z')
}

// ErrorOf returns the SQLSTATE of the first error among the messages, "" if there is
// none.
func ErrorOf(all []Message) string {
	for _, m := range all {
		if m.Type == 'E' {
			return m.Fields()['C']
		}
	}
	return ""
}

// Msg returns a message of any type with that body.
func Msg(typ byte, body ...[]byte) []byte {
	n := 4
	for _, p := range body {
		n += len(p)
	}
	b := binary.BigEndian.AppendUint32([]byte{typ}, uint32(n))
	for _, p := range body {
		b = append(b, p...)
	}
	return b
}

func str(s string) []byte { return append([]byte(s), 0) }

func int16s(n ...int) []byte {
	var b []byte
	for _, v := range n {
		b = binary.BigEndian.AppendUint16(b, uint16(v))
	}
	return b
}

// Query, Parse, … return the messages of a client.
func Query(sql string) []byte { return Msg('Q', str(sql)) }

// Parse prepares sql under name.
func Parse(name, sql string) []byte { return Msg('P', str(name), str(sql), int16s(0)) }

// Bind binds text parameters.
func Bind(portal, stmt string, params ...string) []byte {
	body := append(str(portal), str(stmt)...)
	body = append(body, int16s(0, len(params))...)
	for _, p := range params {
		body = binary.BigEndian.AppendUint32(body, uint32(len(p)))
		body = append(body, p...)
	}
	return Msg('B', body, int16s(0))
}

// Describe describes a statement (kind 'S') or a portal ('P').
func Describe(kind byte, name string) []byte { return Msg('D', []byte{kind}, str(name)) }

// Execute runs a portal for at most rows rows, 0 for all.
func Execute(portal string, rows int) []byte {
	return Msg('E', str(portal), binary.BigEndian.AppendUint32(nil, uint32(rows)))
}

// Close closes a statement ('S') or a portal ('P').
func Close(kind byte, name string) []byte { return Msg('C', []byte{kind}, str(name)) }

// Sync ends a batch.
func Sync() []byte { return Msg('S') }

// Flush requests the pending replies.
func Flush() []byte { return Msg('H') }

// Terminate ends the session.
func Terminate() []byte { return Msg('X') }

// CopyData is a piece of COPY data.
func CopyData(s string) []byte { return Msg('d', []byte(s)) }

// CopyDone ends COPY data.
func CopyDone() []byte { return Msg('c') }

// CopyFail ends COPY data with an error.
func CopyFail(why string) []byte { return Msg('f', str(why)) }

// Run is Parse, Bind, Describe and Execute of the unnamed statement.
func Run(sql string, params ...string) []byte {
	var b []byte
	for _, m := range [][]byte{Parse("", sql), Bind("", "", params...), Describe('P', ""), Execute("", 0)} {
		b = append(b, m...)
	}
	return b
}
