package proxy

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/wire"
)

// maxStartupPacket bounds a startup packet in bytes, including its length field
// (MAX_STARTUP_PACKET_LENGTH does not count that field).
const maxStartupPacket = 10004

// startup is the content of a client's startup packet.
type startup struct {
	version uint32
	params  []string // name, value, …: those that the server gets
	// user and database are cut to the length of a name, as the server does: two names that
	// differ only after that mean one database, and get one lease.
	user, database string
	own            ownParams
	// began is when the client's first byte was read. That is later than the connection was
	// accepted, so that what the client had sent on another connection before is read by then.
	began time.Time
	// startupOnlyUntil is a time before which the client has sent nothing but its startup.
	startupOnlyUntil time.Time
}

// ownParams are the fencepost.* parameters, which are not sent to the server.
type ownParams struct {
	resource, worker string
	campaign         fencing.CampaignMode
	campaigns        bool // campaign was named
	workerTimeout    time.Duration
	heartbeat        time.Duration // 0: none
	token            int64         // 0: none
}

// refused describes the client for the log of refused connections. s is nil if its packet was not read.
func (s *startup) refused(from net.Addr) refusals.Client {
	c := refusals.Client{Addr: from}
	if s != nil {
		c.User, c.Database = s.user, s.database
	}
	return c
}

// cancelRequest is a client's request to cancel the statement of another connection.
type cancelRequest struct {
	pid    uint32
	secret []byte
}

// startupReader reads the packets of a new connection, until the one that begins a session
// or requests a cancel.
type startupReader struct {
	tls   *pgtls.Clients
	conn  link      // as it was accepted, or under TLS after the client has asked for that
	began time.Time // see startup
}

// read returns the client's startup packet or its cancel request. It never reads past the
// end of a packet, because bytes in the clear after an SSLRequest need not come from the
// client (CVE-2021-3935).
func (r *startupReader) read() (*startup, *cancelRequest, error) {
	var first [4]byte // no packet, and no record of TLS, is shorter
	n, err := r.conn.Read(first[:])
	if err != nil {
		return nil, nil, err
	}
	r.began = time.Now()
	had, tlsDone, gssDone := first[:n], false, false
	if pgtls.BeginsTLS(first[0]) {
		secured, err := r.tls.AcceptDirect(r.conn, had)
		if err != nil {
			return nil, nil, err
		}
		r.conn = secured
		had, tlsDone, gssDone = nil, true, true
	}
	for {
		code, body, err := readPacket(r.conn, had)
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
			continue
		case code == wire.GSSRequestCode && !gssDone:
			gssDone = true
			if err := r.decline("GSSAPI encryption request"); err != nil {
				return nil, nil, err
			}
		case code == wire.CancelRequestCode && len(body) < 8:
			return nil, &cancelRequest{}, nil // too short for any key: like a wrong key it gets no answer
		case code == wire.CancelRequestCode:
			return nil, &cancelRequest{pid: binary.BigEndian.Uint32(body), secret: body[4:]}, nil
		case code>>16 == 3:
			s, err := parseStartup(code, body)
			if err == nil {
				s.began = r.began
			}
			return s, nil, err
		default:
			return nil, nil, &fencing.Refusal{SQLState: "0A000", Message: fmt.Sprintf("unsupported frontend protocol %d.%d: server supports 3.0 to 3.2", code>>16, code&0xffff), Verbatim: true}
		}
	}
}

// decline answers a request for encryption with no. What came with it is refused, as
// Postgres does.
func (r *startupReader) decline(request string) error {
	early := r.conn.Unread() > 0
	if _, err := r.conn.Write([]byte{'N'}); err != nil {
		return err
	}
	if early {
		return earlyBytes(request)
	}
	return nil
}

// negotiate answers an SSLRequest. It reports whether conn is now under TLS.
func (r *startupReader) negotiate() (secured bool, err error) {
	const request = "SSL request"
	if r.tls == nil {
		return false, r.decline(request)
	}
	if r.conn.Unread() > 0 {
		return false, earlyBytes(request)
	}
	if _, err := r.conn.Write([]byte{'S'}); err != nil {
		return false, err
	}
	conn, err := r.tls.Accept(r.conn)
	if err != nil {
		return false, err
	}
	r.conn = conn
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

// parseStartup reads the body of a startup packet.
func parseStartup(version uint32, body []byte) (*startup, error) {
	s := &startup{version: version, own: ownParams{workerTimeout: -1}}
	for {
		name, rest, ok := wire.CString(body)
		if !ok {
			return nil, refusals.Protocol("invalid startup packet layout: expected terminator as last byte")
		}
		if len(name) == 0 {
			if len(rest) > 0 {
				return nil, refusals.Protocol("invalid startup packet layout: expected terminator as last byte")
			}
			break
		}
		value, rest, ok := wire.CString(rest)
		if !ok {
			return nil, refusals.Protocol("invalid startup packet layout: expected terminator as last byte")
		}
		if err := s.add(string(name), string(value)); err != nil {
			return nil, err
		}
		body = rest
	}
	if s.user == "" {
		return nil, &fencing.Refusal{SQLState: "28000", Message: "no PostgreSQL user name specified in startup packet", Verbatim: true}
	}
	if s.database == "" {
		s.database = s.user
	}
	return s, nil
}

// add takes one parameter.
func (s *startup) add(name, value string) error {
	switch {
	case name == "user":
		s.user = wire.CutName(value)
	case name == "database":
		s.database = wire.CutName(value)
	case name == "options":
		kept, own := splitOptions(value, isOwn)
		for i := 0; i < len(own); i += 2 {
			if err := s.own.set(own[i], own[i+1]); err != nil {
				return err
			}
		}
		value = kept
	case name == "replication":
		if err := refuseReplication(value); err != nil {
			return err
		}
	case isOwn(name):
		return s.own.set(name, value)
	}
	s.params = append(s.params, name, value)
	return nil
}
