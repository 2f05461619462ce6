package wire

import (
	"encoding/binary"

	"github.com/jackc/pgproto3/v2"
)

// This is the only file that knows pgproto3. It encodes what Fencepost itself
// says, and decodes only what it must understand; DataRow, Bind and
// FunctionCall are never decoded with it (their decoders panic on hostile
// lengths). Framing and size caps are in frame.go.

// mustEncode drops the error of pgproto3's encoders, which they return only
// for messages of more than 1 GiB; Fencepost builds its own from short texts.
func mustEncode(b []byte, _ error) []byte { return b }

// AppendParse appends a Parse without types of parameters.
func AppendParse(dst []byte, name, query string) []byte {
	return mustEncode((&pgproto3.Parse{Name: name, Query: query}).Encode(dst))
}

// AppendRun appends Bind, Execute and Close of a named portal: it runs the
// prepared statement and leaves nothing of it on the server, the client's unnamed
// statement and portal untouched. Parameters are in the binary format.
func AppendRun(dst []byte, portal, statement string, params ...[]byte) []byte {
	bind := pgproto3.Bind{DestinationPortal: portal, PreparedStatement: statement, Parameters: params}
	if len(params) > 0 {
		bind.ParameterFormatCodes = []int16{pgproto3.BinaryFormat}
	}
	dst = mustEncode(bind.Encode(dst))
	dst = mustEncode((&pgproto3.Execute{Portal: portal}).Encode(dst))
	return mustEncode((&pgproto3.Close{ObjectType: 'P', Name: portal}).Encode(dst))
}

// AppendDescribeStatement appends a Describe of a prepared statement.
func AppendDescribeStatement(dst []byte, name string) []byte {
	return mustEncode((&pgproto3.Describe{ObjectType: 'S', Name: name}).Encode(dst))
}

// AppendCommandComplete appends a CommandComplete with this tag.
func AppendCommandComplete(dst []byte, tag string) []byte {
	return mustEncode((&pgproto3.CommandComplete{CommandTag: []byte(tag)}).Encode(dst))
}

// AppendCloseStatement appends a Close of a prepared statement.
func AppendCloseStatement(dst []byte, name string) []byte {
	return mustEncode((&pgproto3.Close{ObjectType: 'S', Name: name}).Encode(dst))
}

// AppendClosePortal appends a Close of a portal.
func AppendClosePortal(dst []byte, name string) []byte {
	return mustEncode((&pgproto3.Close{ObjectType: 'P', Name: name}).Encode(dst))
}

// AppendSync appends a Sync.
func AppendSync(dst []byte) []byte { return mustEncode((&pgproto3.Sync{}).Encode(dst)) }

// AppendQuery appends a whole Query message of the concatenated parts.
func AppendQuery(dst []byte, parts ...[]byte) []byte {
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

// AppendFunctionCall appends a FunctionCall of a function without arguments, which returns its result in binary.
func AppendFunctionCall(dst []byte, oid uint32) []byte {
	dst = append(dst, 'F')
	dst = binary.BigEndian.AppendUint32(dst, 4+4+2+2+2)
	dst = binary.BigEndian.AppendUint32(dst, oid)
	const argumentFormats, arguments, resultFormat = 0, 0, 1
	return append(dst, 0, argumentFormats, 0, arguments, 0, resultFormat)
}

// FunctionResult returns what a function has returned, of the body of a FunctionCallResponse. ok is false if that is
// NULL, or if it is no such body.
func FunctionResult(body []byte) (result []byte, ok bool) {
	if len(body) < 4 || int64(int32(binary.BigEndian.Uint32(body))) != int64(len(body)-4) {
		return nil, false
	}
	return body[4:], true
}

// AppendParameterStatus appends a ParameterStatus.
func AppendParameterStatus(dst []byte, name, value string) []byte {
	return mustEncode((&pgproto3.ParameterStatus{Name: name, Value: value}).Encode(dst))
}

// AppendBackendKeyData appends a BackendKeyData with a secret of any length.
func AppendBackendKeyData(dst []byte, pid uint32, secret []byte) []byte {
	dst = append(dst, 'K')
	dst = binary.BigEndian.AppendUint32(dst, uint32(8+len(secret)))
	dst = binary.BigEndian.AppendUint32(dst, pid)
	return append(dst, secret...)
}

// AppendReadyForQuery appends a ReadyForQuery with that status.
func AppendReadyForQuery(dst []byte, status byte) []byte {
	return mustEncode((&pgproto3.ReadyForQuery{TxStatus: status}).Encode(dst))
}

// AppendStartup appends a StartupMessage of protocol version with parameters
// in the order given: name, value, name, value…
func AppendStartup(dst []byte, version uint32, params []string) []byte {
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

// AppendSSLRequest appends an SSLRequest.
func AppendSSLRequest(dst []byte) []byte { return appendRequest(dst, SSLRequestCode) }

// AppendGSSRequest appends a GSSENCRequest.
func AppendGSSRequest(dst []byte) []byte { return appendRequest(dst, GSSRequestCode) }

func appendRequest(dst []byte, code uint32) []byte {
	dst = binary.BigEndian.AppendUint32(dst, 8)
	return binary.BigEndian.AppendUint32(dst, code)
}

// Sized puts the length into the header of msg, one whole message.
func Sized(msg []byte) []byte {
	binary.BigEndian.PutUint32(msg[1:], uint32(len(msg)-1))
	return msg
}

// AppendCancelRequest appends a CancelRequest with a secret of any length.
func AppendCancelRequest(dst []byte, pid uint32, secret []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(12+len(secret)))
	dst = binary.BigEndian.AppendUint32(dst, CancelRequestCode)
	dst = binary.BigEndian.AppendUint32(dst, pid)
	return append(dst, secret...)
}

// AppendServerError appends an ErrorResponse with the severity, code, message, detail
// and hint of e. Severity is "ERROR" or "FATAL".
func AppendServerError(dst []byte, e ServerError) []byte {
	return mustEncode((&pgproto3.ErrorResponse{
		Severity: e.Severity, SeverityUnlocalized: e.Severity, Code: e.Code,
		Message: e.Message, Detail: e.Detail, Hint: e.Hint,
	}).Encode(dst))
}

// AppendServerNotice appends a NoticeResponse with the severity, code, message and hint of
// e.
func AppendServerNotice(dst []byte, e ServerError) []byte {
	return mustEncode((&pgproto3.NoticeResponse{
		Severity: e.Severity, SeverityUnlocalized: e.Severity, Code: e.Code, Message: e.Message, Hint: e.Hint,
	}).Encode(dst))
}

// ServerError is what Fencepost reads of an ErrorResponse.
type ServerError struct {
	Severity, Code, Message, Detail, Hint, Where string

	File     string // of the server's source
	Routine  string // in it
	Position int    // in characters from 1, 0 if none
}

// Fatal reports whether the server ends the connection after it.
func (e *ServerError) Fatal() bool { return e.Severity == "FATAL" || e.Severity == "PANIC" }

// DecodeError reads the body of an ErrorResponse. ok is false if it is not one.
func DecodeError(body []byte) (e ServerError, ok bool) {
	var m pgproto3.ErrorResponse
	if err := m.Decode(body); err != nil {
		return ServerError{}, false
	}
	e = ServerError{Severity: m.SeverityUnlocalized, Code: m.Code, Message: m.Message, Detail: m.Detail, Hint: m.Hint, Where: m.Where, File: m.File, Routine: m.Routine, Position: int(m.Position)}
	if e.Severity == "" { // servers before 9.6
		e.Severity = m.Severity
	}
	return e, true
}

// EditError copies an ErrorResponse or NoticeResponse (header and body) field by
// field, in the server's order. edit gets each field's type and value and returns the
// value to send; keep false drops the field.
func EditError(dst, msg []byte, edit func(field byte, value []byte) (v []byte, keep bool)) []byte {
	start := len(dst)
	dst = append(dst, msg[0], 0, 0, 0, 0)
	for b := msg[HeaderLen:]; len(b) > 0 && b[0] != 0; {
		value, rest, ok := CString(b[1:])
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

// DecodeColumns returns the values of the columns of a DataRow's body, "" for each that is NULL.
func DecodeColumns(body []byte) (values []string, ok bool) {
	if len(body) < 2 {
		return nil, false
	}
	left := int(binary.BigEndian.Uint16(body))
	for body = body[2:]; left > 0; left-- {
		if len(body) < 4 {
			return nil, false
		}
		n := int32(binary.BigEndian.Uint32(body))
		body = body[4:]
		switch {
		case n == -1:
			values = append(values, "")
		case n < 0 || int(n) > len(body):
			return nil, false
		default:
			values, body = append(values, string(body[:n])), body[n:]
		}
	}
	return values, true
}

// DecodeParameterStatus reads the body of a ParameterStatus.
func DecodeParameterStatus(body []byte) (name, value string, ok bool) {
	n, rest, ok := CString(body)
	if !ok {
		return "", "", false
	}
	v, _, ok := CString(rest)
	return string(n), string(v), ok
}
