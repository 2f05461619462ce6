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
}

// DemotedError says that a host is not the primary any more.
type DemotedError struct {
	Host string // its address
	By   string // the address of the primary now, "" if there is none
}

func (e *DemotedError) Error() string {
	if e.By == "" {
		return e.Host + " has become a standby"
	}
	return fmt.Sprintf("%s is no longer the primary, %s is", e.Host, e.By)
}

// Refusal returns what a client is told whose session is ended for that reason.
func (e *DemotedError) Refusal() *fencing.Refusal {
	return &fencing.Refusal{
		SQLState: "57P01",
		Message:  "terminating connection: " + fencing.ASCII(e.Error()),
		Hint:     "Connect again. It is unknown whether a transaction that was being committed is in effect.",
	}
}

// NoPrimaryError says that no host is known to be the primary.
type NoPrimaryError struct {
	Hosts []View
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

// Refusal returns what a client is told that wants to connect.
func (e *NoPrimaryError) Refusal() *fencing.Refusal {
	return &fencing.Refusal{
		SQLState: "57P03",
		Message:  "Fencepost knows no primary to connect to",
		Detail:   fencing.ASCII(e.list()) + ".",
		Hint:     "Connect again when the primary has been started, or a standby has been promoted. If a host is missing, see upstream.address in Fencepost's configuration.",
	}
}
