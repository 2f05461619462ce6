package main

import (
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newLogger returns the program's logger, and the one of the audit log. Audit
// lines are JSON and are written whatever the level and the format are: nobody
// loses them by asking for less noise.
func newLogger(cfg LogConfig, w io.Writer) (log, audit *zap.Logger, err error) {
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
