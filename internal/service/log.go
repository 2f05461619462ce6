package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/logqueue"
)

// logCloseTimeout bounds the wait for a log that does not accept its last lines.
const logCloseTimeout = 2 * time.Second

// Loggers are the program's logger, whose level can be changed, and the audit logger.
type Loggers struct {
	Log, Audit *zap.Logger
	level      zap.AtomicLevel
}

// newLogger returns the program's Loggers, which write lines to log and to audit. Audit lines are always
// JSON and always written, whatever the configured level and format, so that a lower
// log level does not lose them.
func NewLoggers(cfg config.Log, log, audit io.Writer) (Loggers, error) {
	level, err := zap.ParseAtomicLevel(cfg.Level)
	if err != nil {
		return Loggers{}, fmt.Errorf("log.level: %w", err)
	}
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	enc.EncodeDuration = zapcore.StringDurationEncoder
	jsonEncoder := zapcore.NewJSONEncoder(enc)
	encoder := jsonEncoder
	if cfg.Format == "console" {
		encoder = zapcore.NewConsoleEncoder(enc)
	}
	discarded := zap.ErrorOutput(zapcore.AddSync(io.Discard)) // by default, standard error, which may accept nothing
	return Loggers{
		Log:   zap.New(zapcore.NewCore(encoder, zapcore.AddSync(log), level), discarded),
		Audit: zap.New(zapcore.NewCore(jsonEncoder.Clone(), zapcore.AddSync(audit), zapcore.InfoLevel), discarded).Named("audit"),
		level: level,
	}, nil
}

// LogInBackground returns the Loggers of a server that writes its log to w, and has them write in the
// background: if w is slow, audit lines wait for it, and others are lost, which a line then says. From
// drain after the end of ctx on, no line waits.
//
// If nobody can read w any more, it ends the context that it returns. close must be called at the end.
func LogInBackground(ctx context.Context, cfg config.Config, w io.Writer) (_ context.Context, logs Loggers, close func() error, err error) {
	signal.Ignore(syscall.SIGPIPE) // which would end the process before it has released its leases
	ctx, cancel := context.WithCancelCause(ctx)
	lost := func(lines int) []byte {
		var line bytes.Buffer
		if logs, err := NewLoggers(config.Log{Level: "warn", Format: cfg.Log.Format}, &line, io.Discard); err == nil {
			logs.Log.Named("log").Warn("lines lost: the log did not accept them in time", zap.Int("lines", lines))
		}
		return line.Bytes()
	}
	out := logqueue.New(w, lost, func(err error) {
		if errors.Is(err, syscall.EPIPE) {
			cancel(fmt.Errorf("write the log: %w", err))
		}
	})
	stop := context.AfterFunc(ctx, func() { out.Expire(cfg.ShutdownDelay.D() + cfg.DrainTimeout.D()) })
	close = func() error {
		stop()
		defer cancel(nil)
		if err := out.Close(logCloseTimeout); err != nil {
			return err
		}
		if err := context.Cause(ctx); errors.Is(err, syscall.EPIPE) {
			return err
		}
		return nil
	}
	if logs, err = NewLoggers(cfg.Log, out.Lossy(), out.Complete()); err != nil {
		return nil, logs, nil, errors.Join(err, close())
	}
	return ctx, logs, close, nil
}
