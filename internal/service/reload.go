package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/fencepost/fencepost/internal/config"
	"go.uber.org/zap"
)

// current returns the configuration in effect.
func (s *Server) current() *config.Config { return s.settings.Current() }

// apply hands the settings over that are not read from the configuration each time.
func (s *Server) apply(c *config.Config, logs Loggers) {
	if err := logs.level.UnmarshalText([]byte(c.Log.Level)); err != nil { // it is valid
		s.log.Error("log.level not changed", zap.Error(err))
	}
	s.proxy.LimitConnections(c.Limits.MaxConnections)
	if err := warnOfFewDescriptors(s.log, c.Limits.MaxConnections); err != nil {
		s.log.Warn("limits.max_connections may be too high", zap.Error(err))
	}
}

// noteChange says of which resources the leader is still elected as before the change, and which connections still
// write unchecked.
func (s *Server) noteChange(c *config.Change) {
	s.noteBegun(c)
	var where []string
	for _, r := range s.elections.Resources() {
		if c.Setting != "resources."+r.Resource+".election" {
			continue
		}
		if s.elections.LedByTokens(r.Database, r.Resource) != (policy{s.current}.election(r.Database, r.Resource).Tokens) {
			where = append(where, r.Database)
		}
	}
	if len(where) > 0 {
		c.Note = fmt.Sprintf("not in force yet in database %s, where the resource is in use: it counts when nobody has been connected for it here for %s (limits.resource_idle), or after a restart",
			strings.Join(where, ", "), s.current().Limits.ResourceIdle.D())
	}
}

// noteBegun says how many connections go on as they have begun, with their writes checked less than those of
// connections that begin now.
func (s *Server) noteBegun(c *config.Change) {
	user, ofUser := strings.CutPrefix(c.Setting, "unfenced.users.")
	resource, ofResource := strings.CutPrefix(c.Setting, "resources.")
	resource, enforce := strings.CutSuffix(resource, ".enforce")
	resource, fence := strings.CutSuffix(resource, ".fence")
	unchecked := enforce && c.Old == "shadow" || fence && c.Old == "tables"
	n := 0
	for _, conn := range s.proxy.Connections() {
		switch {
		case conn.Fence != c.Old: // of "session" and "read-only", all writes are checked
		case ofResource && unchecked && conn.Resource == resource, c.Old == "allow" && (ofUser && conn.User == user || c.Setting == "unfenced.default"):
			n++
		}
	}
	if n > 0 {
		c.Note = fmt.Sprintf("not to open connections that began with %s: %d (fencepost clients)", c.Old, n)
	}
}

// readFilesAgain reads the TLS files again. Its error says which cannot be used.
func (s *Server) readFilesAgain() error {
	return errors.Join(s.tls.Reload(), s.adminTLS.Reload(), s.upstream.Reload())
}

// reloads reloads at each SIGHUP, until ctx ends. TLS files are also checked periodically;
// the signal reloads them at once.
func (s *Server) reloads(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-hangups:
			_ = s.settings.Reload(ctx) // it logs the result
		case <-ctx.Done():
			return
		}
	}
}
