// Package auditlog writes the audit log. Identical refusals become one line, and then a
// summary every Interval for as long as they continue, so that one client in a loop fills
// neither the disk nor the memory. Each refusal is in a line or counted in one.
package auditlog

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// Recorder records rejections.
type Recorder interface {
	// Record records a rejection without the text of its statement, which a describes.
	Record(r fencing.Rejection, a sqltext.Audit)
}

// Recorders is the fencing.Auditor that removes the literals of a statement, which takes a parse,
// and passes the rejection to each of the Recorders.
type Recorders []Recorder

// Audit implements fencing.Auditor.
func (all Recorders) Audit(r fencing.Rejection) {
	a := sqltext.AuditOf(r.Statement)
	r.Statement = ""
	for _, to := range all {
		to.Record(r, a)
	}
}

// Log is the Recorder that writes the audit log.
type Log struct {
	log *zap.Logger

	mu struct {
		sync.Mutex
		repeats *repeats
		timer   *time.Timer // nil while there is nothing to summarize
		closed  bool
	}
}

var (
	_ fencing.Auditor = Recorders(nil)
	_ Recorder        = (*Log)(nil)
)

// New returns a Log that writes to log. Close must be called at the end.
func New(log *zap.Logger) *Log {
	l := &Log{log: log}
	l.mu.repeats = newRepeats()
	return l
}

// Record implements Recorder. After Close, every refusal gets a line.
func (l *Log) Record(r fencing.Rejection, a sqltext.Audit) {
	refused := line{Rejection: r, Audit: a}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed || l.mu.repeats.add(refused, time.Now()) {
		l.write(refused)
	}
	l.schedule()
}

// Close writes what was counted since the last summaries.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.closed = true
	if l.mu.timer != nil {
		l.mu.timer.Stop()
	}
	for _, s := range l.mu.repeats.rest() {
		l.write(s)
	}
}

// schedule starts the timer if there is something to summarize later. mu is held.
func (l *Log) schedule() {
	if l.mu.closed || l.mu.timer != nil {
		return
	}
	if at, ok := l.mu.repeats.next(); ok {
		l.mu.timer = time.AfterFunc(time.Until(at), l.summarize)
	}
}

func (l *Log) summarize() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return
	}
	l.mu.timer = nil
	for _, s := range l.mu.repeats.due(time.Now()) {
		l.write(s)
	}
	l.schedule()
}

// write writes one line. The names of its fields are a contract.
func (l *Log) write(w line) {
	entry := l.log.Check(zap.WarnLevel, w.Summary())
	if entry == nil {
		return
	}
	entry.Time = w.Time
	fields := []zap.Field{
		zap.String("resource", w.Resource), zap.String("worker", w.Worker), zap.String("incarnation", w.Incarnation),
		zap.Int64("epoch", int64(w.Epoch)), zap.Int64("current_epoch", int64(w.Current)), zap.String("current_worker", w.Holder),
		zap.String("sqlstate", w.SQLState), zap.String("reason", w.Message),
		zap.String("statement", w.Audit.Statement), zap.String("fingerprint", w.Fingerprint), zap.Strings("tables", w.Tables),
		zap.String("database", w.Database), zap.String("user", w.User), zap.String("client", w.Client),
		zap.String("session", w.Session), zap.String("proxy", w.Proxy),
	}
	if w.repeated > 0 {
		fields = append(fields, zap.Int("repeated", w.repeated), zap.Time("repeated_since", w.since),
			zap.String("repeated_by", w.scope.String()))
	}
	entry.Write(fields...)
}

// String returns what the refusals of a summary have in common, as a word of the log.
func (s scope) String() string {
	switch s {
	case scopeStatement:
		return "statement"
	case scopeWorker:
		return "worker"
	case scopeUser:
		return "user"
	default:
		return "all"
	}
}
