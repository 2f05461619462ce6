package raft

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// A node that is away is not worth several lines a second.
func TestWarningsAreNotRepeated(t *testing.T) {
	t.Parallel()
	core, seen := observer.New(zapcore.WarnLevel)
	log := libraryLog(zap.New(core))
	for range 3 {
		log.Error("failed to heartbeat to", "peer", "10.0.0.1:1", "backoff time", "10ms", "error", "EOF")
		log.Error("failed to heartbeat to", "peer", "10.0.0.1:1", "backoff time", "20ms", "error", "refused")
		log.Error("failed to heartbeat to", "peer", "10.0.0.2:1", "backoff time", "10ms", "error", "EOF")
		log.Info("entering follower state")
	}
	if lines := seen.All(); len(lines) != 2 || lines[0].Level != zapcore.WarnLevel {
		t.Errorf("the log holds %v", lines)
	}
}
