package main

import (
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
)

// loggers are the program's logger, whose level can be changed, and the audit logger.
type loggers struct {
	log, audit *zap.Logger
	level      zap.AtomicLevel
}

// newLogger returns the program's loggers. Audit lines are always
// JSON and always written, whatever the configured level and format, so that a lower
// log level does not lose them.
func newLogger(cfg config.Log, w io.Writer) (loggers, error) {
	level, err := zap.ParseAtomicLevel(cfg.Level)
	if err != nil {
		return loggers{}, usagef("log.level: %v", err)
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
	return loggers{
		log:   zap.New(zapcore.NewCore(encoder, out, level)),
		audit: zap.New(zapcore.NewCore(jsonEncoder.Clone(), out, zapcore.InfoLevel)).Named("audit"),
		level: level,
	}, nil
}
