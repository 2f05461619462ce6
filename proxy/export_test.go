package proxy

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// AnalyzeWith replaces what analyzes the long texts of s. Call it before Serve.
func (s *Server) AnalyzeWith(f func(sql string, st sqltext.Settings) *sqltext.Text) { s.analyze = f }

// Audit adds a rejection to the queue of the auditors.
func (s *Server) Audit(r fencing.Rejection) { s.audit.add(r) }

// AuditQueueSize is how many rejections may wait for the auditors.
const AuditQueueSize = auditQueueSize
