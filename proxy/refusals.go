package proxy

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/wire"
)

// bugRefusal is what the client gets after protocol.ErrBug; the log has the rest.
var bugRefusal = &fencing.Refusal{SQLState: "XX000", Message: "Fencepost ran into a bug, see its log"}

// unexpectedReplyRefusal is what the client gets after protocol.ErrUnexpectedReply; the log has the rest.
var unexpectedReplyRefusal = &fencing.Refusal{
	SQLState: "08P01",
	Message:  "the server's reply does not fit what was sent, so Fencepost ends the session",
	Hint:     "Whether the last statements were run is not known. The log of Fencepost says what was expected. A COPY that a function executes is not supported.",
}

// appendRefusal appends an ErrorResponse for r. The severity is "ERROR" or "FATAL".
func appendRefusal(dst []byte, severity string, r *fencing.Refusal) []byte {
	return wire.AppendServerError(dst, wire.ServerError{Severity: severity, Code: r.SQLState, Message: r.Text(), Detail: r.Detail, Hint: r.Hint})
}

// appendNotice appends a NoticeResponse with the text and the hint of r.
func appendNotice(dst []byte, r *fencing.Refusal) []byte {
	return wire.AppendServerNotice(dst, wire.ServerError{Severity: "NOTICE", Code: "00000", Message: r.Message, Hint: r.Hint})
}
