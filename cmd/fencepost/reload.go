package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/service/reload"
)

const reloadAbout = `
Usage: fencepost reload [--admin ADDRESS]

Makes a running Fencepost read its configuration file again, as SIGHUP does. Prints
each changed setting, and whether it was applied or needs a restart, or where it does
not count yet. New connections
get the new settings; existing ones keep theirs. If the configuration is invalid,
nothing changes: reload prints the errors and exits with 1. So it does if a
certificate, a key or another file of TLS cannot be used; the earlier one holds then.`

func runReload(ctx context.Context, t terminal, args []string) error {
	fs := flag.NewFlagSet("reload", flag.ContinueOnError)
	var flags admin.ClientFlags
	flags.Add(fs, t.getenv, config.Default().Admin.Address)
	if err := parseFlags(t, fs, reloadAbout, args, 0); err != nil {
		return err
	}
	proxy, err := flags.Client()
	if err != nil {
		return usageError{err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var result reload.Result
	if err := proxy.Ask(ctx, http.MethodPost, "/v1/reload", &result, http.StatusOK, http.StatusUnprocessableEntity); err != nil {
		return err
	}
	if len(result.Errors) > 0 {
		return errors.New("the configuration is invalid, nothing has changed:\n" + strings.Join(result.Errors, "\n"))
	}
	for _, c := range result.Changes {
		what := "applied"
		if !c.Applied {
			what = "needs a restart"
		}
		if c.Note != "" {
			what += ", but " + dash(c.Note)
		}
		if _, err := fmt.Fprintf(t.stdout, "%s: %s -> %s: %s\n", dash(c.Setting), dash(c.Old), dash(c.New), what); err != nil {
			return err
		}
	}
	if len(result.Changes) == 0 {
		if _, err := fmt.Fprintln(t.stdout, "no setting has changed"); err != nil {
			return err
		}
	}
	if len(result.Files) > 0 {
		return errors.New("files cannot be used, and the earlier ones hold:\n" + strings.Join(result.Files, "\n"))
	}
	return nil
}

// current returns the configuration in effect.
func (s *serving) current() *config.Config { return s.settings.Current() }

// apply hands the settings over that are not read from the configuration each time.
func (s *serving) apply(c *config.Config, logs loggers) {
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
func (s *serving) noteChange(c *config.Change) {
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

// noteBegun says how many connections go on as they have begun, with their writes checked less than those of connections
// that begin now.
func (s *serving) noteBegun(c *config.Change) {
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
func (s *serving) readFilesAgain() error {
	return errors.Join(s.tls.Reload(), s.adminTLS.Reload(), s.upstream.Reload())
}

// reloads reloads at each SIGHUP, until ctx ends. TLS files are also checked periodically;
// the signal reloads them at once.
func (s *serving) reloads(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-hangups:
			_ = s.settings.Reload(ctx) // it logs the result
		case <-ctx.Done():
			return
		}
	}
}
