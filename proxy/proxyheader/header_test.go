package proxyheader

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pires/go-proxyproto"
)

var (
	client4 = &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7), Port: 51000}
	client6 = &net.TCPAddr{IP: net.ParseIP("2001:db8::7"), Port: 51000}
	local6  = &net.TCPAddr{IP: net.ParseIP("2001:db8::1"), Port: 6432}
	local4  = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 6432}
)

// written returns the header that the library writes.
func written(t testing.TB, version byte, from, to net.Addr, tlvs ...proxyproto.TLV) string {
	t.Helper()
	h := proxyproto.HeaderProxyFromAddrs(version, from, to)
	if err := h.SetTLVs(tlvs); err != nil {
		t.Fatal(err)
	}
	text, err := h.Format()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// v2 returns a header of version 2 with these bytes, and with body after its length.
func v2(command, family byte, body string) string {
	return string(signature) + string([]byte{command, family, byte(len(body) >> 8), byte(len(body))}) + body
}

// addresses4 is the body of a header about TCP over IPv4.
const addresses4 = "\xcb\x00\x71\x07\xc0\x00\x02\x01\xc7\x38\x19\x20"

// read returns the client's address in what a peer sends, "" if the header has none.
func read(r io.Reader) (string, error) {
	header, err := next(r)
	if err != nil {
		return "", err
	}
	client, err := clientOf(header)
	if client == nil || err != nil {
		return "", err
	}
	return client.String(), nil
}

func TestHeadersAreReadToTheirEndAndNoFurther(t *testing.T) {
	t.Parallel()
	const after = "\x00\x00\x00\x08\x04\xd2\x16\x2f"
	for name, c := range map[string]struct{ header, client string }{
		"v1, IPv4":                   {"PROXY TCP4 203.0.113.7 192.0.2.1 51000 6432\r\n", "203.0.113.7:51000"},
		"v1, IPv6":                   {written(t, 1, client6, local6), "[2001:db8::7]:51000"},
		"v1, the shortest":           {"PROXY UNKNOWN\r\n", ""},
		"v1, unknown with addresses": {"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", ""},
		"v1, the longest":            {"PROXY UNKNOWN " + strings.Repeat("f", maxV1-16) + "\r\n", ""},
		"v2, IPv4":                   {v2(0x21, 0x11, addresses4), "203.0.113.7:51000"},
		"v2, IPv6":                   {written(t, 2, client6, local6), "[2001:db8::7]:51000"},
		"v2, with TLVs":              {written(t, 2, client4, local4, proxyproto.TLV{Type: 0x02, Value: []byte("db.internal")}), "203.0.113.7:51000"},
		"v2, the longest":            {v2(0x21, 0x11, addresses4+strings.Repeat("\x04", maxV2-v2Fixed-len(addresses4))), "203.0.113.7:51000"},
		"v2, LOCAL":                  {v2(0x20, 0x00, ""), ""},
		"v2, LOCAL with addresses":   {v2(0x20, 0x11, addresses4), ""},
		"v2, UNSPEC":                 {v2(0x21, 0x00, ""), ""},
		"v2, UNSPEC with TLVs":       {v2(0x21, 0x00, "\x04\x00\x01x"), ""},
		"v2, a Unix socket":          {v2(0x21, 0x31, strings.Repeat("\x00", 216)), ""},
	} {
		for pieces, r := range map[string]func(io.Reader) io.Reader{"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader} {
			rest := strings.NewReader(c.header + after)
			if got, err := read(r(rest)); err != nil || got != c.client {
				t.Errorf("%s, %s: client %q, %v; want %q", name, pieces, got, err, c.client)
			}
			if left, _ := io.ReadAll(rest); string(left) != after {
				t.Errorf("%s, %s: %q is left, want %q", name, pieces, left, after)
			}
		}
	}
}

func TestWhatIsNoHeader(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a startup packet":         "\x00\x00\x00\x08\x04\xd2\x16\x2f",
		"TLS":                      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00",
		"another line":             "POST / HTTP/1.1\r\n\r\n",
		"a signature gone wrong":   "\r\n\r\n\x00\r\nQUIT\r" + v2(0x21, 0x11, addresses4)[12:],
		"no space":                 "PROXYjunk TCP4 203.0.113.7 192.0.2.1 51000 6432\r\n",
		"no CR":                    "PROXY TCP4 203.0.113.7 192.0.2.1 51000 6432\n",
		"a line without end":       "PROXY UNKNOWN " + strings.Repeat("f", 200),
		"one byte too long":        "PROXY UNKNOWN " + strings.Repeat("f", maxV1-15) + "\r\n",
		"an address that is none":  "PROXY TCP4 203.0.113.700 192.0.2.1 51000 6432\r\n",
		"IPv4 called IPv6":         "PROXY TCP6 203.0.113.7 192.0.2.1 51000 6432\r\n",
		"a zone":                   "PROXY TCP6 fe80::1%eth0 fe80::2 51000 6432\r\n",
		"a port that is none":      "PROXY TCP4 203.0.113.7 192.0.2.1 65536 6432\r\n",
		"a word too many":          "PROXY TCP4 203.0.113.7 192.0.2.1 51000 6432 x\r\n",
		"cut short, v1":            "PROXY TCP4 203.0.113.7",
		"cut short, in the prefix": "PROX",
		"cut short, v2":            v2(0x21, 0x11, addresses4)[:20],
		"version 3":                v2(0x31, 0x11, addresses4),
		"an unknown command":       v2(0x22, 0x11, addresses4),
		"an unknown family":        v2(0x21, 0x41, addresses4),
		"an unknown transport":     v2(0x21, 0x13, addresses4),
		"UDP":                      v2(0x21, 0x12, addresses4),
		"addresses cut short":      v2(0x21, 0x11, addresses4[:11]),
		"v2, one byte too long":    v2(0x21, 0x11, addresses4+strings.Repeat("\x04", maxV2-v2Fixed-len(addresses4)+1)),
	} {
		if got, err := read(strings.NewReader(text)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: client %q, error %v", name, got, err)
		}
	}
}

// TestAConnectionThatEndsAtOnceIsNoFault: health checks connect and say nothing.
func TestAConnectionThatEndsAtOnceIsNoFault(t *testing.T) {
	t.Parallel()
	if _, err := next(strings.NewReader("")); errors.Is(err, ErrInvalid) || !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want io.EOF alone", err)
	}
	if _, err := next(iotest.ErrReader(os.ErrDeadlineExceeded)); !errors.Is(err, ErrInvalid) || !late(err) {
		t.Errorf("silence until the deadline: %v", err)
	}
}

// TestNothingIsReadAfterAMissingHeader: a client that awaits the answer to its first packet
// sends no more, and must not be kept waiting.
func TestNothingIsReadAfterAMissingHeader(t *testing.T) {
	t.Parallel()
	r := strings.NewReader("\x00\x00\x00\x08")
	if _, err := next(r); !errors.Is(err, ErrInvalid) || r.Len() != 3 {
		t.Errorf("%v, with %d bytes left of 4", err, r.Len())
	}
}

func TestTrustedAddresses(t *testing.T) {
	t.Parallel()
	trusted := Trusted{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.1.5/32"), netip.MustParsePrefix("fe80::/10")}
	for address, want := range map[string]bool{
		"10.255.0.1": true, "192.168.1.5": true, "192.168.1.6": false, "11.0.0.1": false,
		"::ffff:10.0.0.1": true, "::1": false, "fe80::1%eth0": true,
	} {
		if got := trusted.contains(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
	if (Trusted)(nil).contains(netip.MustParseAddr("10.0.0.1")) {
		t.Error("an address is trusted where none is configured")
	}
}

// FuzzHeader: nothing is read past a header, a header is within its limits, and what is
// accepted has an IP address or none.
func FuzzHeader(f *testing.F) {
	for _, text := range []string{
		"PROXY UNKNOWN\r\n", "PROXY TCP4 203.0.113.7 192.0.2.1 51000 6432\r\nQ", written(f, 1, client6, local6),
		v2(0x21, 0x11, addresses4), v2(0x20, 0x00, "abc"), v2(0x21, 0x31, strings.Repeat("x", 216)), v2(0x21, 0x12, addresses4),
		written(f, 2, client6, local6, proxyproto.TLV{Type: 0x02, Value: []byte("db")}), "\x00\x00\x00\x08",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r := bytes.NewReader(text)
		header, err := next(r)
		if err != nil {
			return
		}
		if whole := len(text) - r.Len(); len(header) != whole || !bytes.Equal(header, text[:whole]) {
			t.Fatalf("%q was read as the header of %q", header, text)
		}
		if limit := map[bool]int{true: maxV1, false: maxV2}[header[0] == 'P']; len(header) > limit {
			t.Fatalf("a header of %d bytes", len(header))
		}
		client, err := clientOf(bytes.Clone(header))
		if tcp, ok := client.(*net.TCPAddr); client != nil && (err != nil || !ok || !tcp.AddrPort().IsValid()) {
			t.Fatalf("client %v (%T), %v", client, client, err)
		}
	})
}
