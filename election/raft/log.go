package raft

import (
	"bytes"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
)

const (
	// repeatAfter is how long a warning is not logged again.
	repeatAfter = time.Minute
	// mostWarnings bounds how many warnings are remembered.
	mostWarnings = 100
)

// lines takes the lines that Raft's library writes.
type lines struct {
	log *zap.Logger

	mu   sync.Mutex
	said map[string]time.Time // when warnings were logged
}

// libraryLog returns a log for Raft's library. What it calls an error is a warning: it goes on, and
// whether leases can be had is logged elsewhere.
func libraryLog(log *zap.Logger) hclog.Logger {
	level := hclog.Warn
	if log.Core().Enabled(zap.DebugLevel) {
		level = hclog.Info
	}
	return hclog.New(&hclog.LoggerOptions{Level: level, Output: &lines{log: log, said: map[string]time.Time{}}, DisableTime: true})
}

// Write takes one line, such as "[WARN]  raft: failed to contact: server-id=two".
func (l *lines) Write(line []byte) (int, error) {
	level, text, ok := bytes.Cut(line, []byte("] "))
	if !ok {
		level, text = nil, line
	}
	text = bytes.TrimSpace(text)
	switch warning := string(level) == "[WARN" || string(level) == "[ERROR"; {
	case warning && l.isNew(text):
		l.log.Warn(string(text))
	default:
		l.log.Debug(string(text))
	}
	return len(line), nil
}

// isNew reports whether a warning was not logged lately. The library repeats some several times a
// second while a node is away; they differ in their ends.
func (l *lines) isNew(text []byte) bool {
	for _, end := range []string{" backoff time=", " error="} {
		text, _, _ = bytes.Cut(text, []byte(end))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.said[string(text)]; ok && time.Since(at) < repeatAfter {
		return false
	}
	if len(l.said) == mostWarnings {
		clear(l.said)
	}
	l.said[string(text)] = time.Now()
	return true
}
