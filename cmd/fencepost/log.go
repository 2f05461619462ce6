package main

import (
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
)

// newLogger returns the program's logger and the audit logger. Audit lines are always
// JSON and always written, whatever the configured level and format, so that a lower
// log level does not lose them.
func newLogger(cfg config.Log, w io.Writer) (log, audit *zap.Logger, err error) {
	level, err := zapcore.ParseLevel(cfg.Level)
	if err != nil {
		return nil, nil, usagef("log.level: %v", err)
	}
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	enc.EncodeDuration = zapcore.StringDurationEncoder
	jsonEncoder := zapcore.NewJSONEncoder(enc)
	encoder := jsonEncoder
	if cfg.Format == "console" {
		encoder = zapcore.NewConsoleEncoder(enc)
	}
	out := zapcore.Lock(zapcore.AddSync(w))
	log = zap.New(zapcore.NewCore(encoder, out, level))
	audit = zap.New(zapcore.NewCore(jsonEncoder.Clone(), out, zapcore.InfoLevel)).Named("audit")
	return log, audit, nil
}
