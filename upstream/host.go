package upstream

import (
	"context"
	"fmt"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

// Host is one server.
type Host struct {
	Address string          // host:port, or the path of a Unix socket
	TLS     *pgtls.Upstream // nil: no TLS
}

// Network returns the network of the address, as package net names it.
func (h Host) Network() string {
	if strings.HasPrefix(h.Address, "/") {
		return "unix"
	}
	return "tcp"
}

func (h Host) check() error {
	switch {
	case h.Address == "":
		return fmt.Errorf("upstream: no address")
	case h.TLS != nil && h.Network() == "unix":
		return fmt.Errorf("upstream: Postgres speaks no TLS on a Unix socket")
	}
	return nil
}

// Primary is the host to connect to.
type Primary struct {
	Host
	// Tenure ends when connections to this host are of no use any more. Its cause is a
	// *DemotedError then.
	Tenure context.Context

	recheck func() // nil if there is a single host
}

// LedToStandby is called when a connection to the primary has led to a standby. It returns what
// the client gets: the address leads to another server than it did at the
// last look, or the server has become a standby since. If there is a single host, it is used
// whatever it is, and the result is nil.
func (p Primary) LedToStandby() *fencing.Refusal {
	if p.recheck == nil {
		return nil
	}
	p.recheck()
	return &fencing.Refusal{
		SQLState: "57P03",
		Message:  noPrimary,
		Detail:   fencing.ASCII(p.Address) + " was the primary when it was last looked at, but this connection has led to a standby.",
		Hint:     "Connect again. If it happens again, let each name in upstream.address of Fencepost's configuration lead to one server only.",
	}
}

// noPrimary is what clients that connect get.
const noPrimary = "Fencepost knows no primary to connect to"

// DemotedError says that a host is not the primary any more.
type DemotedError struct {
	Host string // its address
	By   string // the address of the primary now, "" if there is none; Host if that leads to it
	// Timeline is one that is newer than the host's, 0 if the host has become a standby, if there
	// is another primary, or if it is not known.
	Timeline uint32
}

func (e *DemotedError) Error() string {
	switch {
	case e.By == "" && e.Timeline == 0:
		return e.Host + " has become a standby"
	case e.By == e.Host && e.Timeline == 0:
		return e.Host + " leads to another server now"
	case e.By == e.Host:
		return fmt.Sprintf("%s leads to the primary of timeline %d now", e.Host, e.Timeline)
	case e.By == "":
		return fmt.Sprintf("%s is no longer the primary, timeline %d has begun elsewhere", e.Host, e.Timeline)
	}
	return fmt.Sprintf("%s is no longer the primary, %s is", e.Host, e.By)
}

// Refusal returns what the client of a session that ends for that reason gets.
func (e *DemotedError) Refusal() *fencing.Refusal {
	return &fencing.Refusal{
		SQLState: "57P01",
		Message:  "terminating connection: " + fencing.ASCII(e.Error()),
		Hint:     "Connect again. It is unknown whether a transaction that was being committed is in effect.",
	}
}

// NoPrimaryError says that no host is known to be the primary.
type NoPrimaryError struct {
	Hosts []HostStatus
	found []*Finding
}

func (e *NoPrimaryError) Error() string {
	return fmt.Sprintf("none of the %d hosts is the primary: %s", len(e.Hosts), e.list())
}

func (e *NoPrimaryError) list() string {
	all := make([]string, len(e.Hosts))
	for i, h := range e.Hosts {
		all[i] = h.Address + " " + h.Is
	}
	return strings.Join(all, "; ")
}

// Unwrap returns the errors of the hosts if each of them has refused Fencepost's own login,
// because then that is what is wrong.
func (e *NoPrimaryError) Unwrap() []error {
	var errs []error
	for _, f := range e.found {
		if f == nil || !f.Refused {
			return nil
		}
		errs = append(errs, f.Err)
	}
	return errs
}

// Refusal returns what a client that connects gets.
func (e *NoPrimaryError) Refusal() *fencing.Refusal {
	return &fencing.Refusal{
		SQLState: "57P03",
		Message:  noPrimary,
		Detail:   fencing.ASCII(e.list()) + ".",
		Hint:     "Connect again later. " + e.Remedy(),
	}
}

// Remedy says what an operator must do. A host that has refused the login runs, and may be the
// primary.
func (e *NoPrimaryError) Remedy() string {
	for i, f := range e.found {
		if f != nil && f.Refused {
			return "Let Fencepost's control role log in at " + fencing.ASCII(e.Hosts[i].Address) +
				", which runs. Promote no standby before it is known not to be the primary."
		}
	}
	for _, h := range e.Hosts {
		if h.State == FormerPrimary || h.State == SecondPrimary {
			return "Start the newest primary. To go back to " + fencing.ASCII(h.Address) +
				", stop the other primary or make it a standby of this one, and restart each Fencepost: see docs/incidents.md."
		}
	}
	return "Start the primary, or promote a standby. If a host is missing, see upstream.address in Fencepost's configuration."
}
