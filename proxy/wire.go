package proxy

import (
	"encoding/binary"
	"strconv"

	"github.com/jackc/pgproto3/v2"

	"github.com/fencepost/fencepost/fencing"
)

// This is the only file that knows pgproto3. It encodes what Fencepost itself
// says, and decodes only what it must understand; DataRow, Bind and
// FunctionCall are never decoded with it (their decoders panic on hostile
// lengths). Framing and size caps are in frame.go.

// mustEncode drops the error of pgproto3's encoders, which they return only
// for messages of more than 1 GiB; ours are built from short texts.
func mustEncode(b []byte, _ error) []byte { return b }

func appendParse(dst []byte, name, query string) []byte {
	return mustEncode((&pgproto3.Parse{Name: name, Query: query}).Encode(dst))
}

// appendRun appends Bind, Execute and Close of a named portal: it runs the
// prepared statement and leaves nothing of it behind, the client's unnamed
// statement and portal untouched. Parameters are in the binary format.
func appendRun(dst []byte, portal, statement string, params ...[]byte) []byte {
	bind := pgproto3.Bind{DestinationPortal: portal, PreparedStatement: statement, Parameters: params}
	if len(params) > 0 {
		bind.ParameterFormatCodes = []int16{pgproto3.BinaryFormat}
	}
	dst = mustEncode(bind.Encode(dst))
	dst = mustEncode((&pgproto3.Execute{Portal: portal}).Encode(dst))
	return mustEncode((&pgproto3.Close{ObjectType: 'P', Name: portal}).Encode(dst))
}

// appendUnnamedRun appends Bind, Describe and Execute of the unnamed statement
// and a Sync: what is left of a simple Query once its text was parsed.
func appendUnnamedRun(dst []byte) []byte {
	dst = mustEncode((&pgproto3.Bind{}).Encode(dst))
	dst = mustEncode((&pgproto3.Describe{ObjectType: 'P'}).Encode(dst))
	dst = mustEncode((&pgproto3.Execute{}).Encode(dst))
	return appendSync(dst)
}

func appendCloseStatement(dst []byte, name string) []byte {
	return mustEncode((&pgproto3.Close{ObjectType: 'S', Name: name}).Encode(dst))
}

func appendClosePortal(dst []byte, name string) []byte {
	return mustEncode((&pgproto3.Close{ObjectType: 'P', Name: name}).Encode(dst))
}

func appendSync(dst []byte) []byte { return mustEncode((&pgproto3.Sync{}).Encode(dst)) }

// appendQuery appends a whole Query message of the concatenated parts.
func appendQuery(dst []byte, parts ...[]byte) []byte {
	n := 4 + 1
	for _, p := range parts {
		n += len(p)
	}
	dst = append(dst, 'Q')
	dst = binary.BigEndian.AppendUint32(dst, uint32(n))
	for _, p := range parts {
		dst = append(dst, p...)
	}
	return append(dst, 0)
}

func appendParameterStatus(dst []byte, name, value string) []byte {
	return mustEncode((&pgproto3.ParameterStatus{Name: name, Value: value}).Encode(dst))
}

func appendBackendKeyData(dst []byte, pid uint32, secret []byte) []byte {
	dst = append(dst, 'K')
	dst = binary.BigEndian.AppendUint32(dst, uint32(8+len(secret)))
	dst = binary.BigEndian.AppendUint32(dst, pid)
	return append(dst, secret...)
}

func appendReadyForQuery(dst []byte, status byte) []byte {
	return mustEncode((&pgproto3.ReadyForQuery{TxStatus: status}).Encode(dst))
}

// appendStartup appends a StartupMessage of protocol version with parameters
// in the order given: name, value, name, value…
func appendStartup(dst []byte, version uint32, params []string) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, version)
	for _, p := range params {
		dst = append(dst, p...)
		dst = append(dst, 0)
	}
	dst = append(dst, 0)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start))
	return dst
}

func appendSSLRequest(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, 8)
	return binary.BigEndian.AppendUint32(dst, sslRequestCode)
}

// sized puts the length into the header of msg, one whole message.
func sized(msg []byte) []byte {
	binary.BigEndian.PutUint32(msg[1:], uint32(len(msg)-1))
	return msg
}

func appendCancelRequest(dst []byte, pid uint32, secret []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(12+len(secret)))
	dst = binary.BigEndian.AppendUint32(dst, cancelRequestCode)
	dst = binary.BigEndian.AppendUint32(dst, pid)
	return append(dst, secret...)
}

// appendError appends an ErrorResponse for r. Severity is "ERROR" or "FATAL".
func appendError(dst []byte, severity string, r *fencing.Refusal) []byte {
	return mustEncode((&pgproto3.ErrorResponse{
		Severity: severity, SeverityUnlocalized: severity, Code: r.SQLState,
		Message: r.Message, Detail: r.Detail, Hint: r.Hint,
	}).Encode(dst))
}

// pgError is what Fencepost reads of an ErrorResponse.
type pgError struct {
	Severity, Code, Message, Detail, Hint, Where string

	File     string // of the server's source
	Position int    // in characters from 1, 0 if none
}

func (e *pgError) fatal() bool { return e.Severity == "FATAL" || e.Severity == "PANIC" }

// decodeError reads the body of an ErrorResponse. ok is false if it is not one.
func decodeError(body []byte) (e pgError, ok bool) {
	var m pgproto3.ErrorResponse
	if err := m.Decode(body); err != nil {
		return pgError{}, false
	}
	e = pgError{Severity: m.SeverityUnlocalized, Code: m.Code, Message: m.Message, Detail: m.Detail, Hint: m.Hint, Where: m.Where, File: m.File, Position: int(m.Position)}
	if e.Severity == "" { // servers before 9.6
		e.Severity = m.Severity
	}
	return e, true
}

// editError copies an ErrorResponse or NoticeResponse (header and body) field by
// field, in the server's order. edit gets each field's type and value and returns the
// value to send; keep false drops the field.
func editError(dst, msg []byte, edit func(field byte, value []byte) (v []byte, keep bool)) []byte {
	start := len(dst)
	dst = append(dst, msg[0], 0, 0, 0, 0)
	for b := msg[headerLen:]; len(b) > 0 && b[0] != 0; {
		value, rest, ok := cstring(b[1:])
		if !ok {
			break
		}
		if v, keep := edit(b[0], value); keep {
			dst = append(dst, b[0])
			dst = append(dst, v...)
			dst = append(dst, 0)
		}
		b = rest
	}
	dst = append(dst, 0)
	binary.BigEndian.PutUint32(dst[start+1:], uint32(len(dst)-start-1))
	return dst
}

// shiftPosition subtracts n from the value of a position field.
func shiftPosition(value []byte, n int) []byte {
	p, err := strconv.Atoi(string(value))
	if err != nil || p <= n {
		return value
	}
	return strconv.AppendInt(nil, int64(p-n), 10)
}

// decodeParameterStatus reads the body of a ParameterStatus.
func decodeParameterStatus(body []byte) (name, value string, ok bool) {
	n, rest, ok := cstring(body)
	if !ok {
		return "", "", false
	}
	v, _, ok := cstring(rest)
	return string(n), string(v), ok
}
