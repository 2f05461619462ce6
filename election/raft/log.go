package raft

import (
	"encoding/json"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// repeatAfter is how long a line of Raft's library is not logged again.
const repeatAfter = time.Minute

// lines takes the lines that Raft's library writes.
type lines struct{ log *zap.Logger }

// libraryLog returns a log for Raft's library. What it calls an error is a warning: it continues, and
// whether leases can be had is logged elsewhere. It repeats some lines several times a second while a node is away.
func libraryLog(log *zap.Logger) hclog.Logger {
	once := zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewSamplerWithOptions(c, repeatAfter, 1, 0) })
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, JSONFormat: true, Output: lines{log.WithOptions(once)}})
}

// Write takes one line.
func (l lines) Write(line []byte) (int, error) {
	var said struct {
		Message string `json:"@message"`
	}
	if err := json.Unmarshal(line, &said); err != nil {
		return 0, err
	}
	l.log.Warn("raft: "+said.Message, zap.ByteString("line", line))
	return len(line), nil
}
