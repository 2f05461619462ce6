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

// Config is what New needs.
type Config struct {
	// Open returns what is needed of a database. It is called once per
	// database, and again after an error. The context ends with Close or after
	// a timeout.
	Open func(ctx context.Context, database string) (Backend, error)
	// Settings returns the settings of a resource. nil means the defaults.
	Settings func(database, resource string) Settings
	// Idle is how long a resource without a candidacy is kept. 0 means
	// DefaultIdle.
	Idle time.Duration
	// Observe, if not nil, is told of all that happens. It must not block.
	Observe func(Event)
	Logger  *zap.Logger
	// Now reads CLOCK_BOOTTIME. nil means Boottime.
	Now func() time.Duration
}

// Settings are the times of one resource.
type Settings struct {
	// TTL is how long a lease lasts unless renewed. It is renewed after a
	// third of it.
	TTL time.Duration
	// Margin is how long before the lease can end the worker stops. 0 means a
	// tenth of the TTL.
	Margin time.Duration
	// WorkerTimeout is how long a worker may give no sign of life. 0 means for
	// ever.
	WorkerTimeout time.Duration
	// MaxWorkerTimeout bounds WorkerTimeout, what a claim may ask for, and what
	// false alarms make of either. 0 means no bound.
	MaxWorkerTimeout time.Duration
	// Users are the roles that may campaign. nil means all.
	Users []string
	// Linger is how long the lease is kept after the last connection of a
	// worker said goodbye.
	Linger time.Duration
}

// DefaultSettings returns the settings used where none are given.
func DefaultSettings() Settings {
	return Settings{TTL: DefaultTTL, WorkerTimeout: DefaultWorkerTimeout, Linger: DefaultLinger}
}

// Validate returns an error that says what to change.
func (s Settings) Validate() error {
	switch {
	case s.TTL < 100*time.Millisecond:
		return fmt.Errorf("lease ttl %v is too short: use 100ms or more (Consul: 10s or more, unless session_ttl_min allows less)", s.TTL)
	case s.Margin < 0 || s.Margin > s.TTL/2:
		return fmt.Errorf("lease margin %v must lie between 0 and half the ttl (%v)", s.Margin, s.TTL/2)
	case s.WorkerTimeout < 0:
		return fmt.Errorf("worker timeout %v is negative: use 0 for no timeout", s.WorkerTimeout)
	case s.MaxWorkerTimeout < 0:
		return fmt.Errorf("longest worker timeout %v is negative: use 0 for no bound", s.MaxWorkerTimeout)
	case s.MaxWorkerTimeout > 0 && (s.WorkerTimeout == 0 || s.WorkerTimeout > s.MaxWorkerTimeout):
		return fmt.Errorf("worker timeout %v lies above the longest one, %v", s.WorkerTimeout, s.MaxWorkerTimeout)
	case s.Linger < 0:
		return fmt.Errorf("linger %v is negative", s.Linger)
	}
	return nil
}

// trust is how long a lease that was confirmed by a request is trusted, counted
// from just before that request was sent.
func (s Settings) trust() time.Duration {
	margin := s.Margin
	if margin == 0 {
		margin = s.TTL / 10
	}
	return s.TTL - margin
}

// callTimeout bounds one request to the lease service, so that a request that
// hangs leaves time for two more before the deadline.
func (s Settings) callTimeout() time.Duration { return min(2*time.Second, s.TTL/3) }

func (c Config) withDefaults() (Config, error) {
	if c.Open == nil {
		return c, errors.New("election: Open is missing")
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
