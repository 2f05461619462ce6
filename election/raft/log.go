package raft

import (
	"bytes"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
)

// lines takes the lines that Raft's library writes.
type lines struct{ log *zap.Logger }

// libraryLog returns a log for Raft's library. What it calls an error is a warning: it goes on, and
// whether leases can be had is logged elsewhere.
func libraryLog(log *zap.Logger) hclog.Logger {
	level := hclog.Warn
	if log.Core().Enabled(zap.DebugLevel) {
		level = hclog.Info
	}
	return hclog.New(&hclog.LoggerOptions{Level: level, Output: lines{log}, DisableTime: true})
}

// Write takes one line, such as "[WARN]  raft: failed to contact: server-id=two".
func (l lines) Write(line []byte) (int, error) {
	level, text, ok := bytes.Cut(line, []byte("] "))
	if !ok {
		level, text = nil, line
	}
	message := string(bytes.TrimSpace(text))
	switch string(level) {
	case "[WARN", "[ERROR":
		l.log.Warn(message)
	default:
		l.log.Debug(message)
	}
	return len(line), nil
}
