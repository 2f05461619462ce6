package proxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"

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
	started string // when its server was started, in the form of fencing.RegisterRequest; "" for a session that passes
	seen    string // a time at which the session had it, in the same form
	version gate.Version
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

// questionCalls are the functions that tell which backend a session has. A new backend answers them by FunctionCall in a
// fraction of the time that a SELECT takes, which looks up each name for the first time. They are part of the server's
// program, so their numbers never change (src/include/catalog/pg_proc.dat).
//
// When the server was started distinguishes servers that have the same data, such as those of a failover. The process id
// distinguishes Postgres from a connection pooler, which gives its clients another one than the backend's, and may give
// the next transaction another backend. The time shows later that the process id is still that of this backend.
var questionCalls = [...]uint32{
	2560, // pg_postmaster_start_time()
	2026, // pg_backend_pid()
	2649, // clock_timestamp()
}

// A transaction that is deferrable, read-only and SERIALIZABLE, as a client's settings may make it, waits with its first snapshot
// until all other SERIALIZABLE transactions have ended, which the questions must not do.
const (
	beginQuestionsSQL = "BEGIN ISOLATION LEVEL READ COMMITTED"
	endQuestionsSQL   = "COMMIT"
)

// questions are the messages that ask the server which backend it is.
var questions = func() []byte {
	all := wire.AppendQuery(nil, []byte(beginQuestionsSQL))
	for _, f := range questionCalls {
		all = wire.AppendFunctionCall(all, f)
	}
	return wire.AppendQuery(all, []byte(endQuestionsSQL))
}()

// askForBackend sends the questions whose answers identifyBackend reads, as soon as the server has accepted the client: the
// server answers them right after its first ReadyForQuery, so that they cost no round trip.
func (x *session) askForBackend(policy SessionPolicy) error {
	md, err := x.chooseMode(policy)
	if err != nil || md == passing { // join says what is wrong
		return nil
	}
	return x.sendQuestions()
}

func (x *session) sendQuestions() error {
	if _, err := x.server.Write(questions); err != nil {
		return errOver
	}
	return nil
}

// identifyBackend reads which backend the session has. A very short statement_timeout of the client may hit the questions, so
// they are asked a few times. A backend that does not answer could be that of a pooler, so its session is refused.
func (x *session) identifyBackend() error {
	values, failed, err := x.readAnswers()
	for try := 1; try < questionTries && err == nil && failed != nil; try++ {
		x.log().Debug("the backend did not say which it is", zap.String("sqlstate", failed.Code), zap.String("message", failed.Message))
		if err = x.sendQuestions(); err == nil {
			values, failed, err = x.readAnswers()
		}
	}
	switch {
	case err != nil:
		return err
	case failed != nil:
		return fencing.UnidentifiedBackendRefusal(failed.Code, failed.Message)
	case len(values) != len(questionCalls) || len(values[1]) != 4:
		return fmt.Errorf("%w in its startup", protocol.ErrUnexpectedReply)
	case binary.BigEndian.Uint32(values[1]) != x.backend.pid:
		return fencing.PoolerRefusal
	}
	x.backend.started, x.backend.seen = hex.EncodeToString(values[0]), hex.EncodeToString(values[2])
	return nil
}

const questionTries = 5

// readAnswers reads the answers to the questions. failed is the first error that did not end the connection.
func (x *session) readAnswers() (values [][]byte, failed *wire.ServerError, err error) {
	for range 1 + len(questionCalls) + 1 {
		answer, e, err := x.readAnswer()
		switch {
		case err != nil:
			return nil, nil, err
		case e != nil && failed == nil:
			failed = e
		case answer != nil:
			values = append(values, answer)
		}
	}
	return values, failed, nil
}

// ask runs a statement of Fencepost's own during the startup, which returns no rows. failed is an error of the server that did
// not end the connection.
func (x *session) ask(sql string) (failed *wire.ServerError, err error) {
	if _, err := x.server.Write(wire.AppendQuery(nil, []byte(sql))); err != nil {
		return nil, errOver
	}
	_, failed, err = x.readAnswer()
	return failed, err
}

// readAnswer reads the answer to one message of Fencepost's own, up to its ReadyForQuery. value is what a function has returned,
// nil if the message called none, and failed as in ask.
func (x *session) readAnswer() (value []byte, failed *wire.ServerError, err error) {
	for {
		typ, msg, err := x.handshake.serverMessage()
		if err != nil {
			return nil, nil, err
		}
		switch typ {
		case 'C':
		case 'Z':
			return value, failed, nil
		case 'V':
			result, ok := wire.FunctionResult(msg[wire.HeaderLen:])
			if !ok {
				return nil, nil, fmt.Errorf("%w in its startup", protocol.ErrUnexpectedReply)
			}
			value = bytes.Clone(result)
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
		switch failed, err := x.ask(sql); {
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
