package proxy

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/wire"
	"github.com/fencepost/fencepost/upstream"
)

// backend is the server's side of a session: where it is, and what the server says about it
// during the startup.
type backend struct {
	server  upstream.Primary
	pid     uint32 // its process id, 0 if it gave none
	started string // when its server was started, see locateSQL; "" for a session that passes
	begun   string // when the backend itself was, in the same form; "" if Postgres does not show the session that
	version gate.Version
	// ordinary: its role was no superuser when it began, so that the control role can end it.
	ordinary bool
	// controls: its role was no superuser, and a member of the control role.
	controls bool
	// parameters are the bodies of its ParameterStatus messages.
	parameters [][]byte
	// keyPID and keySecret are the cancel key that the client gets; keyPID is 0 if there is
	// none.
	keyPID    uint32
	keySecret []byte
}

// setKey takes the body of a BackendKeyData message, and makes a key for the client.
func (x *session) setKey(body []byte) {
	if len(body) < 8 {
		return
	}
	b := &x.backend
	b.pid = binary.BigEndian.Uint32(body)
	b.keyPID, b.keySecret = x.srv.keys.add(x, b.server.Host, b.pid, append([]byte(nil), body[4:]...))
}

// addParameter takes the body of a ParameterStatus message. It refuses a server that is a
// standby, where the primary was wanted, and one that is too old.
func (b *backend) addParameter(body []byte) error {
	name, value, ok := wire.DecodeParameterStatus(body)
	switch {
	case ok && name == "in_hot_standby" && value == "on":
		if r := b.server.LedToStandby(); r != nil {
			return r
		}
	case ok && name == "server_version":
		major := fencing.ServerMajor(value)
		if r := fencing.OldServer(major); r != nil {
			return r
		}
		b.version = gate.Version(major)
	}
	b.parameters = append(b.parameters, append([]byte(nil), body...))
	return nil
}

// locateSQL asks when the server was started, to the microsecond, in a form that no setting
// changes. That distinguishes servers that have the same data, such as those of a failover. A
// transaction that is deferrable, read-only and SERIALIZABLE waits with its first query until all
// other SERIALIZABLE transactions have ended, which this query must not do, and a client may have any
// statement_timeout. In another role, Postgres would not show when the backend was started. The statements are one
// transaction, so the first ones count for the last, without a warning, and leave no trace.
// The next two columns say whether the role that the client has authenticated as is a superuser: is_superuser is about
// it unless the session has another session_user, which a superuser's settings can bring about. The process id
// distinguishes Postgres from a connection pooler, which gives its clients another one than the backend's, and may give
// the next transaction another backend. The last column says whether the role is a member of the owner of the schema
// fencepost, as it could become by SET ROLE.
const locateSQL = `SET LOCAL statement_timeout = 0; SET LOCAL role = none; SET LOCAL TRANSACTION ISOLATION LEVEL READ COMMITTED;` +
	`SELECT pg_catalog.encode(pg_catalog.timestamptz_send(pg_catalog.pg_postmaster_start_time()), 'hex'),` +
	` pg_catalog.current_setting('is_superuser'), SESSION_USER,` +
	` coalesce((SELECT pg_catalog.encode(pg_catalog.timestamptz_send(a.backend_start), 'hex') FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) a), ''), pg_catalog.pg_backend_pid(),` +
	` coalesce((SELECT pg_catalog.pg_has_role(SESSION_USER, n.nspowner, 'MEMBER') FROM pg_catalog.pg_namespace n WHERE n.nspname OPERATOR(pg_catalog.=) 'fencepost'), false)`

// sendLocate sends locateSQL, whose answer locate reads, as soon as the server has accepted the client: the server answers
// that right after its first ReadyForQuery, so that it costs no round trip.
func (x *session) sendLocate(policy SessionPolicy) error {
	md, err := x.chooseMode(policy)
	if err != nil || md == passing { // join says what is wrong
		return nil
	}
	if _, err := x.server.Write(wire.AppendQuery(nil, []byte(locateSQL))); err != nil {
		return errOver
	}
	return nil
}

// locate reads the answer to sendLocate: when its server and the backend itself were started, and whether its
// role is a superuser. A very short timeout of the client may end even the statement that lifts it, so it is asked a
// few times. A backend that does not answer could be that of a pooler, so its session is refused.
func (x *session) locate() error {
	values, failed, err := x.readAnswer()
	for try := 1; try < locateTries && err == nil && failed != nil; try++ {
		x.log().Debug("the backend did not say which it is", zap.String("sqlstate", failed.Code), zap.String("message", failed.Message))
		values, failed, err = x.ask(locateSQL)
	}
	switch {
	case err != nil:
		return err
	case failed != nil:
		return fencing.UnidentifiedBackendRefusal(failed.Code, failed.Message)
	case len(values) != 6:
		return fmt.Errorf("%w in its startup", protocol.ErrUnexpectedReply)
	case values[4] != strconv.FormatUint(uint64(x.backend.pid), 10):
		return fencing.PoolerRefusal
	}
	x.backend.started, x.backend.begun = values[0], values[3]
	x.backend.ordinary = values[1] == "off" && values[2] == x.start.user
	x.backend.controls = values[1] == "off" && values[5] == "t"
	return nil
}

const locateTries = 5

// ask runs a text of Fencepost's own during the startup, and returns the columns of its last row, none
// if there is no row. failed is an error of the server that did not end the connection.
func (x *session) ask(sql string) (values []string, failed *wire.ServerError, err error) {
	if _, err := x.server.Write(wire.AppendQuery(nil, []byte(sql))); err != nil {
		return nil, nil, errOver
	}
	return x.readAnswer()
}

// readAnswer reads the answer to a text of Fencepost's own, as ask returns it.
func (x *session) readAnswer() (values []string, failed *wire.ServerError, err error) {
	for {
		typ, msg, err := x.handshake.serverMessage()
		if err != nil {
			return nil, nil, err
		}
		switch typ {
		case 'T', 'C':
		case 'Z':
			return values, failed, nil
		case 'D':
			var ok bool
			if values, ok = wire.DecodeColumns(msg[wire.HeaderLen:]); !ok {
				return nil, nil, fmt.Errorf("%w in its startup", protocol.ErrUnexpectedReply)
			}
		case 'E':
			e, _ := wire.DecodeError(msg[wire.HeaderLen:])
			if e.Fatal() {
				return nil, nil, x.refusedByServer(msg)
			}
			failed = &e
		default:
			if _, err := x.handshake.toClient.Write(msg); err != nil {
				return nil, nil, errOver
			}
		}
	}
}

// While its worker waits to lead, the backend is idle, and idle_session_timeout would end it. It is any that the
// client, the role, the database or the server has set, and counts again when the wait is over.
const (
	suspendIdleTimeoutSQL = "SET idle_session_timeout = 0"
	restoreIdleTimeoutSQL = "RESET idle_session_timeout"
)

// setIdleTimeout runs one of these two statements. A statement_timeout of the client that is very short may hit it, so it is tried more
// than once.
func (x *session) setIdleTimeout(sql string) error {
	for range 3 {
		switch _, failed, err := x.ask(sql); {
		case err != nil:
			return err
		case failed == nil:
			return nil
		default:
			x.log().Debug("the backend did not change its idle_session_timeout", zap.String("sqlstate", failed.Code), zap.String("message", failed.Message))
		}
	}
	return nil
}

// handshake reads whole messages of both sides during the startup. What it writes to the client is sent before
// it waits for either side, and by Flush: a server sends a dozen messages at once, which the client then gets at
// once too.
type handshake struct {
	fromClient, fromServer *bufio.Reader
	toClient               *bufio.Writer
	message                []byte // the last message of the server
}

func newHandshake(client io.ReadWriter, server io.Reader) *handshake {
	to := bufio.NewWriter(client)
	return &handshake{
		fromClient: bufio.NewReader(flushing{client, to}), fromServer: bufio.NewReader(flushing{server, to}), toClient: to,
	}
}

// flushing flushes to before each read.
type flushing struct {
	from io.Reader
	to   *bufio.Writer
}

func (f flushing) Read(p []byte) (int, error) {
	if err := f.to.Flush(); err != nil {
		return 0, err
	}
	return f.from.Read(p)
}

// serverMessage reads one message of the server. msg is valid until the next call.
func (h *handshake) serverMessage() (typ byte, msg []byte, err error) {
	head, err := h.fromServer.Peek(wire.HeaderLen)
	if err != nil {
		return 0, nil, errOver
	}
	f, _, err := wire.PeekFrame(head)
	if err != nil || f.Size > maxStartupReply {
		return 0, nil, fmt.Errorf("%w in its startup", protocol.ErrUnexpectedReply)
	}
	if cap(h.message) < f.Size {
		h.message = make([]byte, f.Size)
	}
	h.message = h.message[:f.Size]
	if _, err := io.ReadFull(h.fromServer, h.message); err != nil {
		return 0, nil, errOver
	}
	return f.Type, h.message, nil
}
