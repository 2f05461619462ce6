package proxy

import (
	"encoding/json"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// auditRefusal writes the line of a refused statement, and counts it.
func (x *session) auditRefusal(e protocol.Event) {
	resource, incarnation := x.start.own.resource, ""
	if x.cand != nil {
		incarnation = x.cand.Incarnation()
	}
	x.srv.cfg.Metrics.Refused(x.start.database, resource, e.Err.Code, e.Write)
	var d struct {
		Epoch         int64  `json:"epoch"`
		CurrentEpoch  int64  `json:"current_epoch"`
		CurrentWorker string `json:"current_worker"`
	}
	_ = json.Unmarshal([]byte(e.Err.Detail), &d) // absent fields stay zero
	a := sqltext.AuditOf(e.Text)
	msg := "stale write rejected"
	if !e.Write {
		msg = "stale read rejected"
	}
	x.srv.cfg.Audit.Warn(msg,
		zap.String("resource", resource), zap.String("worker", x.worker), zap.String("incarnation", incarnation),
		zap.Int64("epoch", d.Epoch), zap.Int64("current_epoch", d.CurrentEpoch), zap.String("current_worker", d.CurrentWorker),
		zap.String("sqlstate", e.Err.Code), zap.String("reason", e.Err.Message),
		zap.String("statement", a.Statement), zap.String("fingerprint", a.Fingerprint), zap.Strings("tables", a.Tables),
		zap.String("database", x.start.database), zap.String("user", x.start.user),
		zap.Stringer("client", x.client.RemoteAddr()), zap.String("session", x.id), zap.String("proxy", x.srv.cfg.ProxyID))
}
