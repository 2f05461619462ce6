package handshake

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/wire"
	"github.com/fencepost/fencepost/upstream"
)

// Backend is what the server says in the startup about itself and the backend that it has given the session.
type Backend struct {
	PID     uint32 // its process id, 0 if it gave none
	Secret  []byte // of its cancel key
	Started string // when its server was started, in the form of fencing.RegisterRequest; "" if it was not asked
	Seen    string // a time at which the session had it, in the same form
	Version gate.Version
	// Parameters are the bodies of its ParameterStatus messages.
	Parameters [][]byte
}

// setKey takes the body of a BackendKeyData message.
func (b *Backend) setKey(body []byte) {
	if len(body) >= 8 {
		b.PID, b.Secret = binary.BigEndian.Uint32(body), bytes.Clone(body[4:])
	}
}

// addParameter takes the body of a ParameterStatus message. It refuses a server that is a
// standby, where the primary was wanted, and one that is too old.
func (b *Backend) addParameter(body []byte, primary upstream.Primary) error {
	name, value, ok := wire.DecodeParameterStatus(body)
	switch {
	case ok && name == "in_hot_standby" && value == "on":
		if r := primary.LedToStandby(); r != nil {
			return r
		}
	case ok && name == "server_version":
		major := fencing.ServerMajor(value)
		if r := fencing.OldServer(major); r != nil {
			return r
		}
		b.Version = gate.Version(major)
	}
	b.Parameters = append(b.Parameters, bytes.Clone(body))
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

// AskForBackend sends the questions whose answers IdentifyBackend reads, as soon as the server has accepted the client: the
// server answers them right after its first ReadyForQuery, so that they cost no round trip.
func (h *Handshake) AskForBackend() error {
	if _, err := h.server.Write(questions); err != nil {
		return ErrOver
	}
	return nil
}

// IdentifyBackend completes b by the answers about which backend the session has. A very short statement_timeout of the client may hit the questions, so
// they are asked a few times. A backend that does not answer could be that of a pooler, so its session is refused.
func (h *Handshake) IdentifyBackend(b *Backend) error {
	values, failed, err := h.readAnswers()
	for try := 1; try < questionTries && err == nil && failed != nil; try++ {
		h.log().Debug("the backend did not say which it is", zap.String("sqlstate", failed.Code), zap.String("message", failed.Message))
		if err = h.AskForBackend(); err == nil {
			values, failed, err = h.readAnswers()
		}
	}
	switch {
	case err != nil:
		return err
	case failed != nil:
		return fencing.UnidentifiedBackendRefusal(failed.Code, failed.Message)
	case len(values) != len(questionCalls) || len(values[1]) != 4:
		return fmt.Errorf("%w in its startup", protocol.ErrUnexpectedReply)
	case binary.BigEndian.Uint32(values[1]) != b.PID:
		return fencing.PoolerRefusal
	}
	b.Started, b.Seen = hex.EncodeToString(values[0]), hex.EncodeToString(values[2])
	return nil
}

const questionTries = 5

// readAnswers reads the answers to the questions. failed is the first error that did not end the connection.
func (h *Handshake) readAnswers() (values [][]byte, failed *wire.ServerError, err error) {
	for range 1 + len(questionCalls) + 1 {
		answer, e, err := h.readAnswer()
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

// readAnswer reads the answer to one message of Fencepost's own, up to its ReadyForQuery. value is what a function has returned,
// nil if the message called none, and failed as in Ask.
func (h *Handshake) readAnswer() (value []byte, failed *wire.ServerError, err error) {
	for {
		typ, msg, err := h.serverMessage()
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
				return nil, nil, h.refusedByServer(msg)
			}
			failed = &e
		default:
			if _, err := h.toClient.Write(msg); err != nil {
				return nil, nil, ErrOver
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

// SuspendIdleTimeout lets the backend be idle for any time, until RestoreIdleTimeout.
func (h *Handshake) SuspendIdleTimeout() error { return h.setIdleTimeout(suspendIdleTimeoutSQL) }

// RestoreIdleTimeout undoes SuspendIdleTimeout.
func (h *Handshake) RestoreIdleTimeout() error { return h.setIdleTimeout(restoreIdleTimeoutSQL) }

// setIdleTimeout runs one of these two statements. A statement_timeout of the client that is very short may hit it, so it is tried more
// than once.
func (h *Handshake) setIdleTimeout(sql string) error {
	for range 3 {
		switch failed, err := h.Ask(sql); {
		case err != nil:
			return err
		case failed == nil:
			return nil
		default:
			h.log().Debug("the backend did not change its idle_session_timeout", zap.String("sqlstate", failed.Code), zap.String("message", failed.Message))
		}
	}
	return nil
}
