package connection

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestOddFirstPackets: to what is no startup packet, or hardly one, Fencepost
// says what Postgres says, which is often nothing.
func TestOddFirstPackets(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), nil)
	db := p.PG.Database(t)
	begin := wiretest.Startup("user", pgtest.App, "database", db)
	padded := func(size int) []byte {
		rest := size - len(wiretest.Startup("user", pgtest.App, "database", db, "application_name", ""))
		return wiretest.Startup("user", pgtest.App, "database", db, "application_name", strings.Repeat("x", rest))
	}
	for name, sent := range map[string][]byte{
		"Terminate":              {'X', 0, 0, 0, 4},
		"Terminate and more":     {'X', 0, 0, 0, 4, 'X', 0, 0, 0, 4},
		"a Query":                Q("select 1"),
		"HTTP":                   []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
		"length 0":               {0, 0, 0, 0, 0, 3, 0, 0},
		"length 7":               {0, 0, 0, 7, 0, 3, 0, 0},
		"a negative length":      {0xff, 0xff, 0xff, 0xff, 0, 3, 0, 0},
		"the longest":            padded(10004),
		"longer":                 padded(10005),
		"nothing in it":          packet(3 << 16),
		"no terminator":          packet(3<<16, []byte("user\x00x")...),
		"only a name":            packet(3<<16, []byte("user\x00")...),
		"more behind the end":    packet(3<<16, []byte("user\x00x\x00\x00database\x00")...),
		"protocol 4.0":           startupOf(4<<16, "user", pgtest.App),
		"protocol 0.0":           startupOf(0, "user", pgtest.App),
		"a cancel without a key": packet(codeCancel),
		"a cancel of nobody":     packet(codeCancel, 0, 0, 0, 0, 0, 0, 0, 0),
		"replication of":         wiretest.Startup("user", pgtest.App, "database", db, "replication", "of"),
		"replication o":          wiretest.Startup("user", pgtest.App, "database", db, "replication", "o"),
		"replication offf":       wiretest.Startup("user", pgtest.App, "database", db, "replication", "offf"),
		"half":                   begin[:len(begin)/2],
		"a byte":                 {0},
	} {
		want := firstReplies(t, p.PG.Addr(), sent)
		if got := firstReplies(t, p.Addr, sent); !slices.Equal(got, want) {
			t.Errorf("%s: %q, Postgres says %q", name, got, want)
		}
	}
}

// TestRequestsForEncryption: where Postgres has no encryption, requests for it are answered
// as by Postgres, also with something in them, and with something that came with them.
func TestRequestsForEncryption(t *testing.T) {
	t.Parallel()
	pg := pgtest.SharedMajor(t, 18)
	p := fixture.NewProxy(t, pg, nil)
	begin := wiretest.Startup("user", pgtest.App, "database", pg.Database(t))
	ssl, gss := packet(codeSSL), packet(codeGSS)
	for name, sent := range map[string][]byte{
		"SSL":                      ssl,
		"GSS":                      gss,
		"SSL with a body":          packet(codeSSL, 1, 2, 3),
		"GSS with a body":          packet(codeGSS, 1, 2, 3),
		"SSL and a startup packet": slices.Concat(ssl, begin),
		"GSS and a startup packet": slices.Concat(gss, begin),
		"SSL and a byte":           append(slices.Clone(ssl), 0),
		"GSS and SSL":              slices.Concat(gss, ssl),
	} {
		want := firstReplies(t, p.PG.Addr(), sent)
		if got := firstReplies(t, p.Addr, sent); !slices.Equal(got, want) || len(got) == 0 {
			t.Errorf("%s: %q, Postgres says %q", name, got, want)
		}
	}
}

// firstReplies sends the first bytes of a connection, and its end, and returns
// what comes back, without the values that differ per session, and without the
// range of protocols, which Fencepost cannot know yet. A server that closes in
// front of unread input resets the connection, which may overtake what it has said:
// then it is asked again.
func firstReplies(t *testing.T, address string, sent []byte) (said []string) {
	t.Helper()
	for range 5 {
		var reset bool
		if said, reset = firstRepliesOnce(t, address, sent); len(said) > 0 || !reset {
			break
		}
	}
	return slices.Compact(said) // one without a resource is told one parameter twice
}

func firstRepliesOnce(t *testing.T, address string, sent []byte) (said []string, reset bool) {
	t.Helper()
	c := wiretest.Dial(t, address)
	c.Send(sent)
	defer c.Close()
	if err := c.Conn.(*net.TCPConn).CloseWrite(); errors.Is(err, syscall.ENOTCONN) {
		return nil, true // reset already
	} else if err != nil {
		t.Fatal(err)
	}
	if bytes.HasPrefix(sent[min(4, len(sent)):], packet(codeSSL)[4:8]) || bytes.HasPrefix(sent[min(4, len(sent)):], packet(codeGSS)[4:8]) {
		var answer [1]byte
		if _, err := io.ReadFull(c, answer[:]); err != nil {
			t.Fatalf("a request for encryption is not answered: %v", err)
		}
		said = append(said, string(answer[:]))
	}
	for {
		m, err := c.Next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
			return said, errors.Is(err, syscall.ECONNRESET)
		case err != nil:
			t.Fatalf("behind %q: %v", said, err)
		case m.Type == 'E':
			f := m.Fields()
			message, _, _ := strings.Cut(f['M'], ": server supports ")
			said = append(said, f['S']+" "+f['C']+" "+message)
		default:
			said = append(said, string(m.Type))
		}
	}
}
