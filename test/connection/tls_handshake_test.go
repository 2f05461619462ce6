package connection

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
)

// TestDirectTLSMustNameTheProtocol, and TLS that is off is not begun: as with
// Postgres, nothing is said in either case.
func TestDirectTLSMustNameTheProtocol(t *testing.T) {
	t.Parallel()
	s := newSides(t, sidesConfig{major: 18})
	plain := fixture.NewProxy(t, pgtest.Shared(t), nil)
	handshake := func(address string, protocols ...string) error {
		conn := wiretest.Dial(t, address)
		cfg := s.clientConfig()
		cfg.NextProtos = protocols
		secured := tls.Client(conn, cfg)
		_ = conn.SetDeadline(time.Now().Add(fixture.Patience))
		if err := secured.Handshake(); err != nil {
			return err
		}
		if _, err := secured.Write(wiretest.Startup("user", pgtest.App, "database", s.db)); err != nil {
			return err
		}
		_, err := io.ReadFull(secured, make([]byte, 5))
		return err
	}
	for name, c := range map[string]struct {
		protocols []string
		fine      bool
	}{
		"none": {nil, false}, "another": {[]string{"h2"}, false}, "postgresql": {[]string{"postgresql"}, true},
		"among others": {[]string{"h2", "postgresql"}, true},
	} {
		err, direct := handshake(s.Addr, c.protocols...), handshake(s.PG.Addr(), c.protocols...)
		if (err == nil) != c.fine || (direct == nil) != c.fine {
			t.Errorf("%s: %v, Postgres %v", name, err, direct)
		}
	}
	if err := handshake(plain.Addr, "postgresql"); err == nil || !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
		t.Errorf("TLS that is off: %v, want the end of the connection", err)
	}
}

// TestNothingInTheClearGetsUnderTLS: what came behind the request, before the
// handshake, is not taken for the client's own words.
func TestNothingInTheClearGetsUnderTLS(t *testing.T) {
	t.Parallel()
	s := newSides(t, sidesConfig{})
	startup := wiretest.Startup("user", pgtest.App, "database", s.db)
	for name, behind := range map[string][]byte{
		"a startup packet": startup, "one byte": {0}, "a cancel request": packet(codeCancel, 1, 2, 3, 4, 5, 6, 7, 8), "a ClientHello": {0x16, 3, 1, 0, 5, 1, 0, 0, 1, 3},
	} {
		c := wiretest.Dial(t, s.Addr)
		c.Send(wiretest.SSLRequest(), behind)
		f := fixture.FatalError(t, c.Rest())
		if f['C'] != "08P01" || f['M'] != "received unencrypted data after SSL request" {
			t.Errorf("%s: %v", name, f)
		}
	}
	// Those that come later meet a handshake.
	c := wiretest.Dial(t, s.Addr)
	c.Send(wiretest.SSLRequest())
	if got := oneByte(t, c); got != 'S' {
		t.Fatalf("answer %q, want S", got)
	}
	c.Send(startup)
	if rest, err := io.ReadAll(c); bytes.ContainsAny(rest, "RSKZ") || err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("a startup packet in place of the handshake was answered by %q, %v", rest, err)
	}
}

func TestRequestsAroundTLS(t *testing.T) {
	t.Parallel()
	s := newSides(t, sidesConfig{})
	first := wiretest.Dial(t, s.Addr)
	first.Send(packet(codeGSS))
	if got := oneByte(t, first); got != 'N' {
		t.Errorf("the answer to a GSSENCRequest is %q", got)
	}
	first.Secure(s.clientConfig(), false)
	first.Send(wiretest.Startup("user", pgtest.App, "database", s.db))
	first.Until('Z')
	for name, request := range map[string][]byte{"SSLRequest": packet(codeSSL), "GSSENCRequest": packet(codeGSS)} {
		for _, direct := range []bool{false, true} {
			c := s.secure(t, direct)
			c.Send(request)
			if f := fixture.FatalError(t, c.Rest()); f['C'] != "0A000" {
				t.Errorf("%s under TLS: %v, want 0A000 as from Postgres", name, f)
			}
		}
	}
	// What is wrong with a startup under TLS is said under TLS.
	c := s.secure(t, false)
	c.Send(wiretest.Startup("user", pgtest.App, "database", "nowhere"))
	if f := fixture.FatalError(t, c.Rest()); f['C'] != "3D000" {
		t.Errorf("an unknown database: %v", f)
	}
}

// TestHandshakesAreBounded: in time, and in what a client can make the proxy keep.
func TestHandshakesAreBounded(t *testing.T) {
	t.Parallel()
	s := newSides(t, sidesConfig{proxy: func(c *proxy.Config) { c.StartupTimeout = time.Second }})
	ends := func(name string, c *wiretest.Conn) {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(fixture.Patience))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: still there", name)
		}
	}
	silent, half := wiretest.Dial(t, s.Addr), wiretest.Dial(t, s.Addr)
	silent.Send(wiretest.SSLRequest())
	half.Send([]byte{0x16, 3, 1})
	ends("silent", silent)
	ends("half a header", half)

	drip := wiretest.Dial(t, s.Addr)
	drip.Send([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 252})
	over := make(chan struct{})
	go func() {
		defer close(over)
		ends("a byte every 20 ms", drip)
	}()
	for n := 0; n < 500; n++ { // fewer than the handshake has left
		if _, err := drip.Conn.Write([]byte{0}); err != nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	<-over

	// A ClientHello of 16 MB, in records of 16 KB: its end is never waited for.
	huge := wiretest.Dial(t, s.Addr)
	record := append([]byte{0x16, 3, 1, 0x40, 0}, make([]byte, 0x4000)...)
	first := append([]byte(nil), record...)
	copy(first[5:], []byte{1, 0xff, 0xff, 0xff})
	sent := 0
	_ = huge.SetWriteDeadline(time.Now().Add(fixture.Patience))
	for _, err := huge.Conn.Write(first); err == nil && sent < 1024; sent++ {
		_, err = huge.Conn.Write(record)
	}
	if sent >= 1024 {
		t.Error("16 MB of a ClientHello were taken")
	}
}

// TestShutdownEndsHandshakes: nothing waits for a client that is in the middle of
// one, or behind it.
func TestShutdownEndsHandshakes(t *testing.T) {
	t.Parallel()
	s := newSides(t, sidesConfig{proxy: func(c *proxy.Config) { c.StartupTimeout = time.Hour }})
	asked, half, done := wiretest.Dial(t, s.Addr), wiretest.Dial(t, s.Addr), wiretest.Dial(t, s.Addr)
	whole := s.clientConfig()
	whole.MaxVersion = tls.VersionTLS12 // in which the server has the last word
	done.Secure(whole, false)
	asked.Send(wiretest.SSLRequest())
	oneByte(t, asked)
	half.Send([]byte{0x16, 3, 1, 2, 0, 1})
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	if err := s.Server.Shutdown(ctx); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	// Behind the S there are no words in the clear. The other may not have been
	// heard yet.
	if rest, err := io.ReadAll(asked); bytes.Contains(rest, []byte("FATAL")) || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("in the handshake: %q, %v", rest, err)
	}
	if rest, err := io.ReadAll(half); len(rest) > 0 && !bytes.Contains(rest, []byte("57P03")) || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("half a ClientHello: %q, %v", rest, err)
	}
	if f := fixture.FatalError(t, done.Rest()); f['C'] != "57P03" {
		t.Errorf("behind its handshake: %v, want 57P03", f)
	}
}
