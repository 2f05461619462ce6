package table

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/config"
)

// Resource is what is known of a resource. What only a proxy knows is not set if it comes from a database.
type Resource struct {
	admin.ResourceView
	OfDatabase bool
	Lost       []string // tables that are recorded as guarded, and are not, if the role may see them
	Near       []string // other resources of the database whose names are close to this one's
}

// FindNear finds the resources whose names are close to those of others of their database. Those that were never led do
// not count, nor do two that the configuration of the proxy names.
func FindNear(all []Resource) {
	for i := range all {
		for j := range i {
			a, b := &all[j], &all[i]
			if a.Epoch > 0 && b.Epoch > 0 && a.Database == b.Database && !(a.Configured && b.Configured) && config.Near(a.Resource, b.Resource) {
				a.Near, b.Near = append(a.Near, b.Resource), append(b.Near, a.Resource)
			}
		}
	}
}

// onlyOfProxies are the fields that a database does not know.
var onlyOfProxies = []string{"here", "configured", "refused_writes", "discarded_writes", "stale_writes", "leaderless_seconds", "false_alarms", "on_stale", "enforce", "fence", "workers"}

// MarshalJSON implements json.Marshaler.
func (r Resource) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(r.ResourceView)
	if err != nil || !r.OfDatabase {
		return text, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	for _, name := range onlyOfProxies {
		delete(fields, name)
	}
	if len(r.Lost) > 0 {
		if fields["lost_guards"], err = json.Marshal(r.Lost); err != nil {
			return nil, err
		}
	}
	return json.Marshal(fields)
}

// ResourceHeads are the names of the columns of Resource.Cells.
const ResourceHeads = "DATABASE\tRESOURCE\tSTATE\tLEADER\tPROXY\tEPOCH\tSINCE\tLEASE LEFT\tSILENT\tSTALE"

// Cells returns the row of a resource. A cell is empty if its value is not known.
func (r Resource) Cells() []string {
	stale := ""
	if !r.OfDatabase {
		stale = strconv.FormatUint(r.Stale, 10)
	}
	return []string{r.Database, r.Resource, r.state(), r.Leader, r.Proxy, r.epoch(), r.since(), r.leaseLeft(), r.silent(), stale}
}

// LeaderHeads are the names of the columns of Resource.LeaderCells.
const LeaderHeads = "DATABASE\tRESOURCE\tLEADER\tPROXY\tEPOCH\tSINCE\tLEASE LEFT\tSILENT"

// LeaderCells returns the row of a resource that is led.
func (r Resource) LeaderCells() []string {
	return []string{r.Database, r.Resource, r.Leader, r.Proxy, r.epoch(), r.since(), r.leaseLeft(), r.silent()}
}

// state returns the state, and for how long a resource that is not led has had it.
func (r Resource) state() string {
	if r.StateSince == nil || r.State == "led" {
		return r.State
	}
	return r.State + " for " + max(0, time.Since(*r.StateSince)).Truncate(time.Second).String()
}

func (r Resource) epoch() string {
	if r.Epoch == 0 {
		return ""
	}
	return strconv.FormatInt(r.Epoch, 10)
}

func (r Resource) since() string {
	if r.Since == nil {
		return ""
	}
	return Since(*r.Since)
}

func (r Resource) leaseLeft() string {
	switch {
	case r.LeaseLeft != nil:
		return Left(Seconds(*r.LeaseLeft))
	case r.ConfirmedUntil != nil && !r.OfDatabase: // it may have been renewed since the proxy read it
		return "≥" + Left(time.Until(*r.ConfirmedUntil))
	case r.ConfirmedUntil != nil:
		return Left(time.Until(*r.ConfirmedUntil))
	case r.Leaderless > 0:
		return "none"
	}
	return ""
}

// silent returns how long the leader has been silent, of how long it may be, if it is connected to the queried proxy.
func (r Resource) silent() string {
	for _, w := range r.Workers {
		switch {
		case w.Role != "leader":
			continue
		case w.WorkerTimeout == nil:
			return "unlimited"
		}
		return Left(Seconds(w.Silence)) + " of " + Seconds(*w.WorkerTimeout).Round(time.Millisecond).String()
	}
	return ""
}

// Notes returns what does not fit into the table.
func (r Resource) Notes() (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if n := r.Refused - r.Stale; n > 0 && !r.OfDatabase {
		note("refused %d other writes, for example of workers that do not lead", n)
	}
	if r.FalseAlarms > 0 && !r.OfDatabase {
		note("%d false alarms: workers that wrote again after their lease was released for silence (raise worker_timeout if this grows)", r.FalseAlarms)
	}
	if n := r.GuardedTables - len(r.Lost); n > 0 {
		note("guards %d tables", n)
	}
	for _, table := range r.Lost {
		note("table %s is recorded as guarded, and has no guard: run fencepost guard add again, or fencepost guard remove", Dash(table))
	}
	if len(r.Near) > 0 {
		note("its name is close to %s, and each has a leader of its own: if they mean the same, correct one", Names(r.Near))
	}
	switch {
	case r.Enforce == "shadow":
		note("shadow: nothing is refused")
	case r.InShadow > 0: // before a reload
		note("shadow: nothing is refused on %d connections, which have begun with enforce: shadow: let their workers connect again (fencepost clients)", r.InShadow)
	}
	switch {
	case r.OnStale == "discard":
		note("discards stale writes: %d so far", r.Discarded)
	case r.Discarded > 0: // before a reload
		note("discarded %d stale writes", r.Discarded)
	}
	switch {
	case r.Fence == "tables":
		note("fence: tables: workers that do not lead may write what is not guarded")
	case r.InTables > 0: // before a reload
		note("fence: tables: workers that do not lead may write what is not guarded on %d connections, which have begun with that: let them connect again (fencepost clients)", r.InTables)
	}
	if r.StateReason != "" {
		note("%s", Dash(r.State+": "+r.StateReason))
	}
	for _, by := range r.Blocked {
		note("takeover blocked: %s", Dash(by))
	}
	for _, b := range r.Awaits {
		note("takeover waits for %s", awaited(b))
	}
	for _, order := range r.Orders {
		note("order: %s", Dash(order))
	}
	if len(r.Waiting) > 0 {
		note("waiting: %s", Names(r.Waiting))
	}
	return notes
}

// awaited names a backend that a grant waits for, and says when it is ended.
func awaited(b fencing.Awaited) string {
	var text strings.Builder
	fmt.Fprintf(&text, "backend %d of role %s (application %s, from %s): %s", b.PID, Dash(b.User), Dash(b.Application), b.Address, Dash(b.State))
	if b.Since != nil {
		text.WriteString(" since " + Since(*b.Since))
	}
	if left := time.Until(b.EndsAt); left > 0 {
		text.WriteString(", ended in " + Left(left))
	} else {
		text.WriteString(", is being ended")
	}
	return text.String()
}
