package proxy

import (
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
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
	found, _ := fencing.DecodeFinding(e.Err.Detail) // zero if the proxy itself refused
	a := sqltext.AuditOf(e.Text)
	x.srv.cfg.Audit.Warn(fencing.KindOf(resource, e.Err.Code).Summary(e.Write),
		zap.String("resource", resource), zap.String("worker", x.worker), zap.String("incarnation", incarnation),
		zap.Int64("epoch", int64(found.Epoch)), zap.Int64("current_epoch", int64(found.Current)), zap.String("current_worker", found.Holder),
		zap.String("sqlstate", e.Err.Code), zap.String("reason", e.Err.Message),
		zap.String("statement", a.Statement), zap.String("fingerprint", a.Fingerprint), zap.Strings("tables", a.Tables),
		zap.String("database", x.start.database), zap.String("user", x.start.user),
		zap.Stringer("client", x.client.RemoteAddr()), zap.String("session", x.id), zap.String("proxy", x.srv.cfg.ProxyID))
}
