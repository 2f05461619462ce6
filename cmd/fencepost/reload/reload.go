// Package reload gives a running proxy its configuration again.
package reload

import (
	"strings"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
)

// Result is what came of a reload, as the admin address returns it.
type Result struct {
	Changes []config.Change `json:"changes"`
	// Errors are what is wrong with the configuration. If there are any, nothing changed.
	Errors []string `json:"errors,omitempty"`
}

// Reloader reloads the configuration of one proxy. Its fields are set before its first use.
type Reloader struct {
	// Load reads and validates the configuration.
	Load func() (config.Config, error)
	// Apply is called with the new configuration when it has become current, for whatever
	// does not read Current each time.
	Apply func(*config.Config)
	// Note, if not nil, adds to each applied change where it is not in effect yet.
	Note func(*config.Change)
	Log  *zap.Logger

	current atomic.Pointer[config.Config]
	turn    sync.Mutex // held during a reload
}

// Start sets the configuration with which the proxy starts.
func (r *Reloader) Start(cfg config.Config) { r.current.Store(&cfg) }

// Current returns the configuration in effect. Nobody may change it.
func (r *Reloader) Current() *config.Config { return r.current.Load() }

// Reload reads the configuration again, and applies what can be applied to a running proxy.
// It logs what has changed or what is wrong.
func (r *Reloader) Reload() Result {
	r.turn.Lock()
	defer r.turn.Unlock()
	next, err := r.Load()
	if err != nil {
		result := Result{Changes: []config.Change{}, Errors: strings.Split(err.Error(), "\n")}
		r.Log.Error("the configuration is invalid and was not reloaded: nothing has changed", zap.Strings("errors", result.Errors))
		return result
	}
	reloaded, changes := r.Current().Reload(&next)
	r.current.Store(reloaded)
	r.Apply(reloaded)
	applied := 0
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
			applied++
			r.Log.Info("setting changed", fields...)
		} else {
			r.Log.Warn("setting not changed: it needs a restart", fields...)
		}
	}
	r.Log.Info("configuration reloaded", zap.Int("changed", applied), zap.Int("need_restart", len(changes)-applied))
	return Result{Changes: append([]config.Change{}, changes...)}
}
