package main

import (
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// auditors returns all that are told of refused statements. The metrics come first, so
// that whoever sees the line also sees the count.
func auditors(m *Metrics, log *zap.Logger) []fencing.Auditor {
	return []fencing.Auditor{metricsAuditor{m}, logAuditor{log}}
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

// metricsAuditor counts refused writes. A refused read is not counted.
type metricsAuditor struct{ metrics *Metrics }

func (a metricsAuditor) Audit(r fencing.Rejection) {
	if !r.Write {
		return
	}
	m, database, resource := a.metrics, label(r.Database), label(r.Resource)
	if r.Kind == fencing.KindStale {
		m.stale.WithLabelValues(database, resource, r.SQLState).Inc()
	}
	m.refused.WithLabelValues(database, resource, r.Kind.String(), r.SQLState).Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.refused[[2]string{r.Database, r.Resource}]++
}
