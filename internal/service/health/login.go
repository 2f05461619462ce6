package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/faults"
)

// mostLogins is in how many databases, one after the other, a login is tried that is not answered.
const mostLogins = 3

// login logs in again, because connections that exist outlast a changed password, and because a server that answers may
// still let no one log in. It uses a database that is in use, so as not to touch any other, and asks there whether the
// idle ones still exist. If it cannot log in, it asks each of these. A database in which nothing is answered, because
// someone has locked a catalog, says nothing of the others, so one that is not answered in time is followed by the
// next. It reports whether Postgres lets the control role log in, if perhaps not to this database.
func (c *Checker) login(ctx context.Context, used, idle []string) bool {
	try := used
	if !slices.Contains(used, c.cfg.Home) {
		try = append(slices.Clip(used), c.cfg.Home)
	}
	var found store.Login
	var err error
	for _, database := range try[:min(len(try), mostLogins)] {
		err = c.bounded(ctx, func(ctx context.Context) (err error) {
			found, err = store.LogIn(ctx, c.control(database), idle)
			return err
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	c.loginEnded(ctx, err, len(used) > 0 || c.cfg.Named)
	if err == nil {
		c.report(ctx, faults.InPrimary, standbyFault(found.Standby))
	}
	for _, name := range idle {
		if slices.Contains(found.Missing, name) || err != nil && store.Gone(c.Probe(ctx, name)) {
			c.cfg.Dropped(name)
		}
	}
	return err == nil || store.OfDatabase(err)
}

// standbyFault returns the fault of a server that is a standby, nil for any other.
func standbyFault(standby bool) *faults.Fault {
	if !standby {
		return nil
	}
	return &faults.Fault{Kind: faults.Upstream,
		Problem: "Postgres is a standby: it accepts no writes, so nobody is granted an epoch there",
		Remedy:  "Let upstream.address name the primary. If this server is to become the primary, promote it.",
	}
}

// loginEnded records the result of a login. sure says that the role must be able to log in to that
// database; otherwise, what the server says of that database alone is no fault.
func (c *Checker) loginEnded(ctx context.Context, err error, sure bool) {
	var f *faults.Fault
	switch {
	case err == nil:
		if !c.LoggedIn() {
			close(c.loggedIn)
		}
	case store.Gone(err) || store.OfDatabase(err) && !sure: // lookAtDatabases and survey look at databases
	default:
		f = store.FaultOf(err)
	}
	c.shut = f != nil && f.Kind == faults.Upstream
	c.report(ctx, faults.InControl, f)
}

// survey looks for a usable fence before the first worker connects. It reports false if
// it should be repeated.
func (c *Checker) survey(ctx context.Context) (done bool) {
	if c.cfg.Named {
		err := c.Probe(ctx, c.cfg.Home)
		if store.Gone(err) {
			c.report(ctx, placeSchema, &faults.Fault{Kind: faults.Schema, Problem: err.Error(),
				Remedy: fmt.Sprintf("Create database %q and run fencepost migrate --dsn DSN for it, or correct control.probe_database (FENCEPOST_CONTROL_PROBE_DATABASE).", c.cfg.Home)})
			return false
		}
		c.report(ctx, placeSchema, nil)
		c.examined(ctx, c.cfg.Home, err)
		c.fenced[c.cfg.Home] = time.Time{}
		return true // a fault is looked at again
	}
	var names []string
	err := c.bounded(ctx, func(ctx context.Context) (err error) {
		names, err = store.Databases(ctx, c.control(c.cfg.Home), surveyed+1)
		return err
	})
	if err != nil {
		return store.OfDatabase(err)
	}
	if len(names) > surveyed {
		return true // it would be an imposition, and one of them may well have a fence
	}
	perhaps := len(c.cfg.Open()) > 0
	for _, name := range names {
		switch err := c.Probe(ctx, name); {
		case store.NoSchema(err):
		case store.Refused(err):
			perhaps = true
		default:
			perhaps = true
			c.examined(ctx, name, err)
			c.fenced[name] = time.Time{}
		}
	}
	if perhaps {
		c.report(ctx, placeSchema, nil)
		return true
	}
	c.report(ctx, placeSchema, &faults.Fault{Kind: faults.Schema,
		Problem: "no database that the control role may connect to has the schema fencepost: " + strings.Join(names, ", "),
		Remedy:  "Run fencepost migrate --dsn DSN for each database that workers write through Fencepost."})
	return false
}
