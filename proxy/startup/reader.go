package startup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/unixsocket"
	"github.com/fencepost/fencepost/proxy/wire"
)

// maxStartupPacket bounds a startup packet in bytes, including its length field
// (MAX_STARTUP_PACKET_LENGTH does not count that field).
const maxStartupPacket = 10004

// Reader reads the packets of a new connection, until the one that begins a session
// or requests a cancel.
type Reader struct {
	Conn  netloop.Conn // as it was accepted, or under TLS after the client has asked for that
	tls   *pgtls.Clients
	began time.Time // see Request
}

// NewReader returns a reader of conn. tls are the settings by which clients are offered TLS; nil means that they are
// offered none. As with Postgres, they are not about Unix sockets, whose bytes do not leave the host.
func NewReader(conn netloop.Conn, tls *pgtls.Clients) *Reader {
	if conn.RemoteAddr().Network() == unixsocket.Network {
		tls = nil
	}
	return &Reader{Conn: conn, tls: tls}
}

// Read returns the client's startup packet or its cancel request. It never reads past the
// end of a packet, because bytes in the clear after an SSLRequest need not come from the
// client (CVE-2021-3935).
func (r *Reader) Read() (*Request, *Cancel, error) {
	var first [4]byte // no packet, and no record of TLS, is shorter
	n, err := r.Conn.Read(first[:])
	if err != nil {
		return nil, nil, err
	}
	r.began = time.Now()
	had, tlsDone, gssDone := first[:n], false, false
	if pgtls.BeginsTLS(first[0]) {
		secured, err := r.tls.AcceptDirect(r.Conn, had)
		if err != nil {
			return nil, nil, err
		}
		r.Conn = secured
		had, tlsDone, gssDone = nil, true, true
	}
	for {
		code, body, err := readPacket(r.Conn, had)
		had = nil
		if err != nil {
			return nil, nil, err
		}
		switch {
		case code == wire.SSLRequestCode && !tlsDone:
			tlsDone = true
			secured, err := r.negotiate()
			if err != nil {
				return nil, nil, err
			}
			gssDone = gssDone || secured
		case code == wire.GSSRequestCode && !gssDone:
			gssDone = true
			if err := r.decline("GSSAPI encryption request"); err != nil {
				return nil, nil, err
			}
		case code == wire.CancelRequestCode && len(body) < 8:
			return nil, &Cancel{}, nil // too short for any key: like a wrong key it gets no answer
		case code == wire.CancelRequestCode:
			return nil, &Cancel{PID: binary.BigEndian.Uint32(body), Secret: body[4:]}, nil
		case code>>16 == 3:
			s, err := parseStartup(code, body)
			if err == nil {
				s.Began = r.began
			}
			return s, nil, err
		default:
			return nil, nil, &fencing.Refusal{SQLState: "0A000", Message: fmt.Sprintf("unsupported frontend protocol %d.%d: server supports 3.0 to 3.2", code>>16, code&0xffff), Verbatim: true}
		}
	}
}

// Admit returns why the settings of TLS do not let the client that has sent s begin a session, or nil if they do.
func (r *Reader) Admit(s *Request) error {
	switch err := r.tls.Admit(r.Conn, s.User); {
	case errors.Is(err, pgtls.ErrInTheClear):
		return refusals.Plain(r.Conn.RemoteAddr(), s.User, s.Database)
	case errors.Is(err, pgtls.ErrNoClientCertificate):
		return &fencing.Refusal{SQLState: "28000", Message: "connection requires a valid client certificate", Verbatim: true}
	case errors.Is(err, pgtls.ErrClientName):
		return &fencing.Refusal{
			SQLState: "28000", Message: fmt.Sprintf("certificate authentication failed for user %q", fencing.ASCII(s.User)),
			Hint:     "The common name of the client's certificate must be the user's name (tls.client_cert in Fencepost's configuration).",
			Verbatim: true,
		}
	default:
		return err
	}
}

// decline answers a request for encryption with no. What came with it is refused, as
// Postgres does.
func (r *Reader) decline(request string) error {
	early := r.Conn.Unread() > 0
	if _, err := r.Conn.Write([]byte{'N'}); err != nil {
		return err
	}
	if early {
		return earlyBytes(request)
	}
	return nil
}

// negotiate answers an SSLRequest. It reports whether conn is now under TLS.
func (r *Reader) negotiate() (secured bool, err error) {
	const request = "SSL request"
	if r.tls == nil {
		return false, r.decline(request)
	}
	if r.Conn.Unread() > 0 {
		return false, earlyBytes(request)
	}
	if _, err := r.Conn.Write([]byte{'S'}); err != nil {
		return false, err
	}
	conn, err := r.tls.Accept(r.Conn)
	if err != nil {
		return false, err
	}
	r.Conn = conn
	return true, nil
}

// earlyBytes is what Postgres says to bytes that came in the clear with a request for
// encryption, and would be taken for those of the secured connection (CVE-2021-23214).
func earlyBytes(request string) *fencing.Refusal {
	return &fencing.Refusal{
		SQLState: "08P01", Message: "received unencrypted data after " + request,
		Detail:   "This could be either a client-software bug or evidence of an attempted man-in-the-middle attack.",
		Verbatim: true,
	}
}

// readPacket reads one packet, which has no type byte. had is the part of it that was
// already read.
func readPacket(conn net.Conn, had []byte) (code uint32, body []byte, err error) {
	var length [4]byte
	if _, err := io.ReadFull(conn, length[copy(length[:], had):]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n < 8 || n > maxStartupPacket {
		return 0, nil, refusals.ErrPacketLength
	}
	packet := make([]byte, n-4)
	_, err = io.ReadFull(conn, packet)
	return binary.BigEndian.Uint32(packet), packet[4:], err
}

// Cancel is a client's request to cancel the statement of another connection.
type Cancel struct {
	PID    uint32
	Secret []byte
}
