package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// Defaults of Settings.
const (
	DefaultTTL           = 10 * time.Second
	DefaultWorkerTimeout = 30 * time.Second
	DefaultLinger        = 0 * time.Second
)

// Config is the configuration of an Elections.
type Config struct {
	// Open opens a database. It is called once per database, and again after an error.
	// The context ends with Close or after a timeout.
	Open func(ctx context.Context, database string) (Backend, error)
	// Settings returns the settings of a resource. nil means the defaults.
	Settings func(database, resource string) Settings
	// Idle is how long a resource without a candidacy is kept. 0 means DefaultIdle.
	Idle time.Duration
	// Observe, if not nil, is called with every event. It must not block.
	Observe func(Event)
	Logger  *zap.Logger
	// Now reads CLOCK_BOOTTIME. nil means Boottime.
	Now func() time.Duration
}

// Settings are the election settings of one resource.
type Settings struct {
	// TTL is how long a lease lasts unless it is renewed. It is renewed after a third
	// of that.
	TTL time.Duration
	// Margin is how long before the possible end of the lease the worker stops. 0 means
	// a tenth of the TTL.
	Margin time.Duration
	// WorkerTimeout is how long a worker may show no activity. 0 means unlimited.
	WorkerTimeout time.Duration
	// MaxWorkerTimeout limits WorkerTimeout, the timeout that a client may request, and
	// their extension by false positives. 0 means no limit.
	MaxWorkerTimeout time.Duration
	// Users are the roles that may campaign. nil means all roles.
	Users []string
	// Linger is how long the lease is kept after a worker's last connection was closed
	// in an orderly way.
	Linger time.Duration
}

// DefaultSettings returns the settings of a resource that has none of its own.
func DefaultSettings() Settings {
	return Settings{TTL: DefaultTTL, WorkerTimeout: DefaultWorkerTimeout, Linger: DefaultLinger}
}

// Validate returns an error that says what to change.
func (s Settings) Validate() error {
	switch {
	case s.TTL < 100*time.Millisecond:
		return fmt.Errorf("lease ttl %v is too short: use at least 100ms (with Consul at least 10s, unless session_ttl_min allows less)", s.TTL)
	case s.Margin < 0 || s.Margin > s.TTL/2:
		return fmt.Errorf("lease margin %v must be between 0 and half the ttl (%v)", s.Margin, s.TTL/2)
	case s.WorkerTimeout < 0:
		return fmt.Errorf("worker timeout %v is negative: use 0 for no timeout", s.WorkerTimeout)
	case s.MaxWorkerTimeout < 0:
		return fmt.Errorf("maximum worker timeout %v is negative: use 0 for no limit", s.MaxWorkerTimeout)
	case s.MaxWorkerTimeout > 0 && (s.WorkerTimeout == 0 || s.WorkerTimeout > s.MaxWorkerTimeout):
		return fmt.Errorf("worker timeout %v is longer than the maximum of %v", s.WorkerTimeout, s.MaxWorkerTimeout)
	case s.Linger < 0:
		return fmt.Errorf("linger %v is negative: use 0 or more", s.Linger)
	}
	return nil
}

// trust returns how long a lease is trusted after a request confirmed it, counted from
// just before that request was sent.
func (s Settings) trust() time.Duration {
	margin := s.Margin
	if margin == 0 {
		margin = s.TTL / 10
	}
	return s.TTL - margin
}

// callTimeout bounds one request to the lease service, so that a request that hangs
// leaves time for two more before the deadline.
func (s Settings) callTimeout() time.Duration { return min(2*time.Second, s.TTL/3) }

func (c Config) withDefaults() (Config, error) {
	if c.Open == nil {
		return c, errors.New("election: Config.Open is nil")
	}
	if c.Settings == nil {
		c.Settings = func(string, string) Settings { return DefaultSettings() }
	}
	if c.Observe == nil {
		c.Observe = func(Event) {}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Idle == 0 {
		c.Idle = DefaultIdle
	}
	if c.Now == nil {
		c.Now = Boottime
	}
	return c, nil
}
