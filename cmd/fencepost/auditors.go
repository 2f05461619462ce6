package main

import (
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/cmd/fencepost/admin"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// auditors returns all that are told of refused statements. The metrics come first, so
// that whoever sees the line also sees the count.
func auditors(m *admin.Metrics, log *zap.Logger) []fencing.Auditor {
	return []fencing.Auditor{m, logAuditor{log}}
}

// logAuditor writes one line for each refused statement. It removes the literals, which
// takes a parse of the statement.
type logAuditor struct{ log *zap.Logger }

func (a logAuditor) Audit(r fencing.Rejection) {
	line := a.log.Check(zap.WarnLevel, r.Kind.Summary(r.Write))
	if line == nil {
		return
	}
	line.Time = r.Time
	s := sqltext.AuditOf(r.Statement)
	line.Write(
		zap.String("resource", r.Resource), zap.String("worker", r.Worker), zap.String("incarnation", r.Incarnation),
		zap.Int64("epoch", int64(r.Epoch)), zap.Int64("current_epoch", int64(r.Current)), zap.String("current_worker", r.Holder),
		zap.String("sqlstate", r.SQLState), zap.String("reason", r.Message),
		zap.String("statement", s.Statement), zap.String("fingerprint", s.Fingerprint), zap.Strings("tables", s.Tables),
		zap.String("database", r.Database), zap.String("user", r.User), zap.String("client", r.Client),
		zap.String("session", r.Session), zap.String("proxy", r.Proxy))
}
