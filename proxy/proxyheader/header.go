package proxyheader

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/pires/go-proxyproto"
)

// The limits of a header, in bytes. That of version 1 is from the specification. One of
// version 2 could have 64 KB, but load balancers send much less: addresses, names, and at
// most the client's certificate.
const (
	maxV1 = 107
	maxV2 = 4096
)

// signature begins a header of version 2. Every header of version 1 is longer than it.
var signature = []byte("\r\n\r\n\x00\r\nQUIT\n")

// lineStart begins a header of version 1.
var lineStart = []byte("PROXY ")

// The parts of a header of version 2.
const (
	v2Command = 12 // the place of the version and the command
	v2Family  = 13 // the place of the address family and the transport
	v2Length  = 14 // the place of the length of what follows
	v2Fixed   = 16 // where that begins
	v2Local   = 0x20
)

// next reads one header and nothing past it. It does not read on where the bytes cannot
// become one: the peer may wait for the answer to something else.
func next(r io.Reader) ([]byte, error) {
	header := make([]byte, len(signature), maxV1)
	if _, err := io.ReadFull(r, header[:1]); err != nil {
		return nil, begun(err)
	}
	if header[0] != lineStart[0] && header[0] != signature[0] {
		return nil, fmt.Errorf("%w: the connection begins with something else", ErrInvalid)
	}
	if _, err := io.ReadFull(r, header[1:]); err != nil {
		return nil, cutShort(err)
	}
	switch {
	case bytes.Equal(header, signature):
		return restOfV2(r, header)
	case bytes.HasPrefix(header, lineStart):
		return restOfV1(r, header)
	default:
		return nil, fmt.Errorf("%w: the connection begins with something else", ErrInvalid)
	}
}

// restOfV1 reads one byte at a time, because only the end of the line says where to stop.
func restOfV1(r io.Reader, header []byte) ([]byte, error) {
	for header[len(header)-1] != '\n' {
		n := len(header)
		if n == maxV1 {
			return nil, fmt.Errorf("%w: its line has more than %d bytes", ErrInvalid, maxV1)
		}
		header = header[:n+1]
		if _, err := io.ReadFull(r, header[n:]); err != nil {
			return nil, cutShort(err)
		}
	}
	return header, nil
}

func restOfV2(r io.Reader, header []byte) ([]byte, error) {
	header = header[:v2Fixed]
	if _, err := io.ReadFull(r, header[len(signature):]); err != nil {
		return nil, cutShort(err)
	}
	size := v2Fixed + int(binary.BigEndian.Uint16(header[v2Length:]))
	if size > maxV2 {
		return nil, fmt.Errorf("%w: it has %d bytes, more than %d", ErrInvalid, size, maxV2)
	}
	whole := append(make([]byte, 0, size), header...)[:size]
	if _, err := io.ReadFull(r, whole[v2Fixed:]); err != nil {
		return nil, cutShort(err)
	}
	return whole, nil
}

// begun returns the error of a connection that failed before its first byte. One that ends
// there is a port scan or a health check, and nothing is wrong with it.
func begun(err error) error {
	if late(err) {
		return cutShort(err)
	}
	return err
}

// cutShort returns the error of a header that did not arrive as a whole.
func cutShort(err error) error {
	if late(err) {
		return fmt.Errorf("%w: it did not arrive in time (%w)", ErrInvalid, os.ErrDeadlineExceeded)
	}
	return fmt.Errorf("%w: it is incomplete: %w", ErrInvalid, err)
}

func late(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// clientOf returns the client's address in a header, or nil if it has none: the load balancer
// itself opened the connection (LOCAL), does not know the address (UNKNOWN, UNSPEC), or has a
// client that came to it by a Unix socket, and so from its own host.
func clientOf(header []byte) (net.Addr, error) {
	if header[0] == signature[0] && header[v2Family] == 0 && header[v2Command] == v2Local+1 {
		header[v2Command] = v2Local // the library refuses it, which the specification leaves open
	}
	all := bufio.NewReaderSize(bytes.NewReader(header), maxV2)
	h, err := proxyproto.Read(all)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	case all.Buffered() > 0: // next and the library disagree about its end
		return nil, fmt.Errorf("%w: it has bytes past its end", ErrInvalid)
	case h.Command.IsLocal(), h.TransportProtocol.IsUnspec():
		return nil, nil
	case !h.TransportProtocol.IsStream():
		return nil, fmt.Errorf("%w: it is about datagrams", ErrInvalid)
	}
	if client, ok := h.SourceAddr.(*net.TCPAddr); ok {
		return client, nil
	}
	return nil, nil
}
