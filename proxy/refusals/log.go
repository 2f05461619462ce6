package refusals

import (
	"errors"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/wire"
)

// Log counts and logs the connections that are refused. It logs, for each reason, user and database, the first one, and
// one a minute while there are more.
type Log struct {
	log   *zap.Logger
	count func(reason string)

	mu     sync.Mutex
	series map[key]*series
}

// Client is what is known of a client that is refused. User and Database are "" if it has not named any.
type Client struct {
	Addr           net.Addr
	User, Database string
}

// key is what refusals are distinguished by. Clients choose the names, so they are empty for all for whom there is
// no room, as for those that are refused before they have named any.
type key struct{ reason, user, database string }

// maxKeys bounds the keys that have names, and maxText the length in bytes of what Postgres says.
const maxKeys, maxText = 64, 1000

type series struct {
	*faults.Series
	last time.Time
}

// NewLog returns a Log that calls count, which must not block, for each refused connection. The reason is one of
// Reasons.
func NewLog(log *zap.Logger, count func(reason string)) *Log {
	return &Log{log: log, count: count, series: map[key]*series{}}
}

// of returns the series of a key. One that is over a minute old is over.
func (l *Log) of(k key) *faults.Series {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.series[k] == nil && len(l.series) >= maxKeys {
		for old, s := range l.series {
			if now.Sub(s.last) > faults.Interval {
				delete(l.series, old)
			}
		}
		if len(l.series) >= maxKeys {
			k = key{reason: k.reason}
		}
	}
	s := l.series[k]
	if s == nil || now.Sub(s.last) > faults.Interval {
		s = &series{Series: faults.NewSeries(l.log, "connection refused", 0)}
		l.series[k] = s
	}
	s.last = now
	return s.Series
}

// Refused counts and logs a connection that is refused for err, unless err says that the client has gone.
func (l *Log) Refused(err error, c Client) {
	var r *fencing.Refusal
	switch {
	case errors.As(err, &r):
		l.refused(reasonOfRefusal(r), c, wire.ServerError{Code: r.SQLState, Message: r.Message, Hint: r.Hint})
	case errors.Is(err, pgtls.ErrClientHandshake), errors.Is(err, ErrPacketLength):
		l.refused(reasonStartup, c, wire.ServerError{Message: err.Error()})
	case errors.Is(err, protocol.ErrUnexpectedReply):
		l.refused(reasonUpstream, c, wire.ServerError{Message: err.Error()})
	}
}

// refused is Refused where the reason is known, and e is what the client got.
func (l *Log) refused(reason string, c Client, e wire.ServerError) {
	l.count(reason)
	if reason == reasonShutdown { // which the log says already
		return
	}
	fields := []zap.Field{
		zap.String("reason", reason), zap.String("user", c.User), zap.String("database", c.Database),
		zap.Stringer("client", c.Addr), zap.String("sqlstate", e.Code), zap.String("message", e.Message[:min(len(e.Message), maxText)]),
	}
	if e.Hint != "" {
		fields = append(fields, zap.String("hint", e.Hint[:min(len(e.Hint), maxText)]))
	}
	l.of(key{reason, c.User, c.Database}).Failed(fields...)
}

// RefusedByPostgres is Refused for a connection that Postgres refuses with e.
func (l *Log) RefusedByPostgres(e wire.ServerError, c Client) {
	reason := reasonOf(e.Code, true)
	if e.Hint == "" {
		e.Hint = postgresHint(reason, e.Code)
	}
	e.Message = "Postgres: " + e.Message
	l.refused(reason, c, e)
}

// postgresHint says what to do about an error with which Postgres refuses a connection.
func postgresHint(reason, sqlstate string) string {
	switch {
	case sqlstate == "3D000":
		return "Correct the database that the client names, or create it."
	case reason == reasonAuthentication:
		return "Check the user's password, and that pg_hba.conf lets that user connect from Fencepost's address. The log of Postgres has the details."
	case reason == reasonLimit:
		return "Raise max_connections of Postgres, or the connection limit of the role or database, or lower limits.max_connections in Fencepost's configuration."
	default:
		return "Look into the log of Postgres."
	}
}
