package refusals

import (
	"errors"
	"net"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/wire"
)

// Send sends err as a FATAL error if it is a *fencing.Refusal, and nothing otherwise.
func Send(conn net.Conn, err error) {
	var r *fencing.Refusal
	if !errors.As(err, &r) {
		return
	}
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	fatal := wire.ServerError{Severity: "FATAL", Code: r.SQLState, Message: r.Text(), Detail: r.Detail, Hint: r.Hint}
	_, _ = conn.Write(wire.AppendServerError(nil, fatal)) // the connection ends either way
}

// AppendNotice appends a NoticeResponse with the text and the hint of r.
func AppendNotice(dst []byte, r *fencing.Refusal) []byte {
	return wire.AppendServerNotice(dst, wire.ServerError{Severity: "NOTICE", Code: "00000", Message: r.Message, Hint: r.Hint})
}
