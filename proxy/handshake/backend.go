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
	Seen    string // a time of the server at which this backend served the session, in the same form
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

// questionCalls are the functions that tell which backend a session has. A new backend answers them by FunctionCall in
// a fraction of the time that a SELECT takes, which looks up each name for the first time. They are part of the
// server's program, so their numbers never change (src/include/catalog/pg_proc.dat).
//
// When the server was started distinguishes servers that have the same data, such as those of a failover. The process
// id distinguishes Postgres from a connection pooler, which gives its clients another one than the backend's, and may
// give the next transaction another backend. A backend that started after the time of the third answer is another one
// with the same process id.
var questionCalls = [...]uint32{
	2560, // pg_postmaster_start_time()
	2026, // pg_backend_pid()
	2649, // clock_timestamp()
}

// A transaction that is deferrable, read-only and SERIALIZABLE, as a client's settings may make it, waits with its
// first snapshot until all other SERIALIZABLE transactions have ended, which the questions must not do.
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

// AskForBackend sends the questions whose answers IdentifyBackend reads, as soon as the server has accepted the client:
// the server answers them right after its first ReadyForQuery, so that they cost no round trip.
func (h *Handshake) AskForBackend() error {
	if _, err := h.server.Write(questions); err != nil {
		return ErrOver
	}
	return nil
}

// tries is how often the server is asked what a very short statement_timeout of the client may hit.
const tries = 5

// IdentifyBackend completes b by the answers to the questions that AskForBackend has sent. If they fail, it asks again.
// A backend that does not answer could be that of a pooler, so its session is refused.
func (h *Handshake) IdentifyBackend(b *Backend) error {
	var values [][]byte
	var failed *wire.ServerError
	for try := range tries {
		if try > 0 {
			if err := h.AskForBackend(); err != nil {
				return err
			}
		}
		var err error
		if values, failed, err = h.readAnswers(); err != nil {
			return err
		}
		if failed == nil {
			break
		}
		h.log().Debug("the backend did not say which it is", zap.String("sqlstate", failed.Code), zap.String("message", failed.Message))
	}
	switch {
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

// readAnswer reads the answer to one message of Fencepost's own, up to its ReadyForQuery. value is what a function has
// returned, nil if the message called none, and failed as in Ask.
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

// A waiting worker's backend is idle, so idle_session_timeout, wherever it is set, would end it. Fencepost sets it to
// 0, and resets it when the wait is over.
const (
	suspendIdleTimeoutSQL = "SET idle_session_timeout = 0"
	restoreIdleTimeoutSQL = "RESET idle_session_timeout"
)

// SuspendIdleTimeout lets the backend be idle for any time, until RestoreIdleTimeout.
func (h *Handshake) SuspendIdleTimeout() error { return h.setIdleTimeout(suspendIdleTimeoutSQL) }

// RestoreIdleTimeout undoes SuspendIdleTimeout.
func (h *Handshake) RestoreIdleTimeout() error { return h.setIdleTimeout(restoreIdleTimeoutSQL) }

// setIdleTimeout runs one of these two statements. If the server does not execute it, the timeout stays as it is.
func (h *Handshake) setIdleTimeout(sql string) error {
	for range tries {
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
