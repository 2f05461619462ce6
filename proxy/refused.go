package proxy

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

// refusals logs the connections that are refused: for each reason, user and database the first one, and one a minute
// while there are more.
type refusals struct {
	log *zap.Logger

	mu     sync.Mutex
	series map[refusedKey]*refusedSeries
}

// refusedKey is what refusals are distinguished by. Clients choose the names, so they are empty for all for whom there is
// no room, as for those that are refused before they have named any.
type refusedKey struct{ reason, user, database string }

// maxRefused bounds the keys that have names, and maxRefusedText the length in bytes of what Postgres says.
const maxRefused, maxRefusedText = 64, 1000

type refusedSeries struct {
	*faults.Series
	last time.Time
}

func newRefusals(log *zap.Logger) *refusals {
	return &refusals{log: log, series: map[refusedKey]*refusedSeries{}}
}

// of returns the series of a key. One that is over a minute old is over.
func (r *refusals) of(key refusedKey) *faults.Series {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.series[key] == nil && len(r.series) >= maxRefused {
		for k, s := range r.series {
			if now.Sub(s.last) > faults.Interval {
				delete(r.series, k)
			}
		}
		if len(r.series) >= maxRefused {
			key = refusedKey{reason: key.reason}
		}
	}
	s := r.series[key]
	if s == nil || now.Sub(s.last) > faults.Interval {
		s = &refusedSeries{Series: faults.NewSeries(r.log, "connection refused", 0)}
		r.series[key] = s
	}
	s.last = now
	return s.Series
}

// refused counts and logs a connection that is refused for err, unless err says that the client has gone. start is nil
// if it was not read.
func (s *Server) refused(err error, start *startup, client net.Addr) {
	var r *fencing.Refusal
	switch {
	case errors.As(err, &r):
		s.refusedFor(reasonOfRefusal(r), start, client, wire.ServerError{Code: r.SQLState, Message: r.Message, Hint: r.Hint})
	case errors.Is(err, pgtls.ErrClientHandshake), errors.Is(err, errPacketLength):
		s.refusedFor(refusedStartup, start, client, wire.ServerError{Message: err.Error()})
	case errors.Is(err, protocol.ErrUnexpectedReply):
		s.refusedFor(refusedUpstream, start, client, wire.ServerError{Message: err.Error()})
	}
}

// refusedFor is refused where the reason is known, and e is what the client got.
func (s *Server) refusedFor(reason string, start *startup, client net.Addr, e wire.ServerError) {
	s.cfg.Metrics.Refused(reason)
	if reason == refusedShutdown { // which the log says already
		return
	}
	key := refusedKey{reason: reason}
	if start != nil {
		key.user, key.database = start.user, start.database
	}
	fields := []zap.Field{
		zap.String("reason", reason), zap.String("user", key.user), zap.String("database", key.database),
		zap.Stringer("client", client), zap.String("sqlstate", e.Code), zap.String("message", e.Message[:min(len(e.Message), maxRefusedText)]),
	}
	if e.Hint != "" {
		fields = append(fields, zap.String("hint", e.Hint[:min(len(e.Hint), maxRefusedText)]))
	}
	s.refusals.of(key).Failed(fields...)
}

// refusedByPostgres is refused for a connection that Postgres refuses.
func (s *Server) refusedByPostgres(e wire.ServerError, start *startup, client net.Addr) {
	reason := reasonOf(e.Code, true)
	if e.Hint == "" {
		e.Hint = postgresHint(reason, e.Code)
	}
	e.Message = "Postgres: " + e.Message
	s.refusedFor(reason, start, client, e)
}

// postgresHint says what to do about an error with which Postgres refuses a connection.
func postgresHint(reason, sqlstate string) string {
	switch {
	case sqlstate == "3D000":
		return "Correct the database that the client names, or create it."
	case reason == refusedAuthentication:
		return "Check the user's password, and that pg_hba.conf lets that user connect from Fencepost's address. The log of Postgres has the details."
	case reason == refusedLimit:
		return "Raise max_connections of Postgres, or the connection limit of the role or database, or lower limits.max_connections in Fencepost's configuration."
	default:
		return "Look into the log of Postgres."
	}
}
