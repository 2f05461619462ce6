// Package reload gives a running proxy its configuration again.
package reload

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/config"
)

// Result is what came of a reload, as the admin address returns it.
type Result struct {
	Changes []config.Change `json:"changes"`
	// Errors are what is wrong with the configuration. If there are any, nothing changed.
	Errors []string `json:"errors,omitempty"`
	// Files are what is wrong with other files, for which the earlier ones hold. The configuration has changed all the
	// same.
	Files []string `json:"files,omitempty"`
}

// OK reports whether all could be read.
func (r Result) OK() bool { return len(r.Errors) == 0 && len(r.Files) == 0 }

// Reloader reloads the configuration of one proxy. Its fields are set before its first use.
type Reloader struct {
	// Before, if not nil, is called before each Load, in the same goroutine: for files that are read again
	// whether or not the configuration has changed. Its error says which cannot be used.
	Before func() error
	// Load reads and validates the configuration. It runs in a goroutine of its own, because a file may
	// never be read to its end, such as a named pipe, or one on a server that does not answer. No one
	// waits for that goroutine for longer than ReadTimeout, and there is only one at a time.
	Load func() (config.Config, error)
	// Apply is called with the new configuration when it has become current, for whatever
	// does not read Current each time.
	Apply func(*config.Config)
	// Note, if not nil, adds to each applied change where it is not in effect yet.
	Note func(*config.Change)
	Log  *zap.Logger

	current atomic.Pointer[config.Config]
	last    atomic.Pointer[attempt]
	pending atomic.Pointer[[]string]
	turn    sync.Mutex  // held during a reload
	reading chan loaded // of a Load that no one waits for any more; nil if there is none
}

// attempt is a read of the configuration.
type attempt struct {
	at time.Time
	ok bool
}

// loaded is the result of Load.
type loaded struct {
	cfg   config.Config
	err   error
	files error // that of Before
}

// ReadTimeout bounds how long a reload waits for the configuration to be read.
const ReadTimeout = 5 * time.Second

// Start sets the configuration with which the proxy starts.
func (r *Reloader) Start(cfg config.Config) {
	r.current.Store(&cfg)
	r.last.Store(&attempt{time.Now(), true})
}

// Last returns when the configuration was last read, be it by Start or by Reload, and whether all could be used.
func (r *Reloader) Last() (at time.Time, ok bool) {
	last := r.last.Load()
	return last.at, last.ok
}

// Pending returns the settings that had another value in the configuration when it was last valid, and that only a
// restart applies, in the order of the configuration.
func (r *Reloader) Pending() []string {
	if pending := r.pending.Load(); pending != nil {
		return *pending
	}
	return nil
}

// Current returns the configuration in effect. No one may change it.
func (r *Reloader) Current() *config.Config { return r.current.Load() }

// load calls Load, and waits for its result for at most ReadTimeout, or until ctx ends.
func (r *Reloader) load(ctx context.Context) loaded {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	for stale := r.reading != nil; ; stale = false { // what was read for an earlier call does not count
		if r.reading == nil {
			reading := make(chan loaded, 1)
			go func() {
				var l loaded
				if r.Before != nil {
					l.files = r.Before()
				}
				l.cfg, l.err = r.Load()
				reading <- l
			}()
			r.reading = reading
		}
		select {
		case l := <-r.reading:
			r.reading = nil
			if !stale {
				return l
			}
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return loaded{err: fmt.Errorf("read the configuration: %w", ctx.Err())}
			}
			return loaded{err: fmt.Errorf("read the configuration: it, or a file that it names, could not be read to its end within %s", ReadTimeout)}
		}
	}
}

// Reload reads the configuration again, and applies what can be applied to a running proxy.
// It logs what has changed or what is wrong. If ctx ends while the configuration is read, nothing changes.
func (r *Reloader) Reload(ctx context.Context) Result {
	r.turn.Lock()
	defer r.turn.Unlock()
	result := r.reload(ctx)
	r.last.Store(&attempt{time.Now(), result.OK()})
	return result
}

func (r *Reloader) reload(ctx context.Context) Result {
	next := r.load(ctx)
	var result Result
	if next.files != nil {
		result.Files = strings.Split(next.files.Error(), "\n")
	}
	if next.err != nil {
		result.Changes, result.Errors = []config.Change{}, strings.Split(next.err.Error(), "\n")
		why := "the configuration is invalid and was not reloaded: nothing has changed"
		if ctx.Err() != nil {
			why = "the configuration was not reloaded, because whoever asked for it has gone: nothing has changed"
		}
		r.Log.Error(why, zap.Strings("errors", result.Errors))
		return result
	}
	reloaded, changes := r.Current().Reload(&next.cfg)
	r.current.Store(reloaded)
	r.Apply(reloaded)
	var pending []string
	for i := range changes {
		c := &changes[i]
		if c.Applied && r.Note != nil {
			r.Note(c)
		}
		fields := []zap.Field{zap.String("setting", c.Setting), zap.String("old", c.Old), zap.String("new", c.New)}
		if c.Note != "" {
			fields = append(fields, zap.String("note", c.Note))
		}
		if c.Applied {
			r.Log.Info("setting changed", fields...)
		} else {
			pending = append(pending, c.Setting)
			r.Log.Warn("setting not changed: it needs a restart", fields...)
		}
	}
	r.pending.Store(&pending)
	r.Log.Info("configuration reloaded", zap.Int("changed", len(changes)-len(pending)), zap.Int("need_restart", len(pending)))
	result.Changes = append([]config.Change{}, changes...)
	return result
}
