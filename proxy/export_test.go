package proxy

import "github.com/fencepost/fencepost/fencing/sqltext"

// AnalyzeWith replaces what analyzes the long texts of s. Call it before Serve.
func (s *Server) AnalyzeWith(f func(sql string, st sqltext.Settings) *sqltext.Text) {
	s.analyst.analyze = f
}

// AuditQueueSize is how many rejections may wait for the auditors.
const AuditQueueSize = auditQueueSize

// WaitingTexts returns how many texts wait for their turn to be analyzed.
func (s *Server) WaitingTexts() int { return s.analyst.turns.Waiting() }
