package proxy

import "github.com/fencepost/fencepost/fencing"

// AnalyzeWith replaces what analyzes the long texts of s. Call it before Serve.
func (s *Server) AnalyzeWith(f func(sql string, st fencing.Settings) *fencing.Text) { s.analyze = f }
