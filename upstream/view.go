package upstream

import (
	"errors"
	"time"
)

// asynchronous is the warning about a primary without synchronous standbys.
const asynchronous = "several upstream hosts, and synchronous_standby_names is empty: a failover can lose commits of workers and the newest grants. " +
	"Set synchronous_standby_names, or run fencepost generation bump --database DATABASE --restored after each failover"

// HostStatus is what is known of one host.
type HostStatus struct {
	Address string     `json:"address"`
	State   State      `json:"state"`
	Since   *time.Time `json:"since,omitempty"` // of the state
	// Is says the same as the state in a few words, as in "is a standby".
	Is string `json:"is"`
}

// Statuses returns what is known of each host, in the order of the configuration. It is empty
// if there is a single host.
func (s *Servers) Statuses() []HostStatus {
	if s.probe == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statusesLocked()
}

func (s *Servers) statusesLocked() []HostStatus {
	p := s.pictureLocked()
	views := make([]HostStatus, len(s.hosts))
	for i, h := range s.hosts {
		views[i].Address = h.Address
		views[i].State, views[i].Is = p.describe(i)
		if since := s.mu.since[i]; !since.IsZero() {
			views[i].Since = &since
		}
	}
	return views
}

// Warnings says what is risky about the hosts at present.
func (s *Servers) Warnings() []string {
	if s.probe == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var warnings []string
	for i, v := range s.statusesLocked() {
		switch {
		case v.State.wrong():
			warnings = append(warnings, v.Address+" "+v.Is)
		case v.State == IsPrimary && s.mu.found[i].Standbys == "":
			warnings = append(warnings, asynchronous)
		}
	}
	return warnings
}

// Addresses returns the addresses of all hosts.
func (s *Servers) Addresses() []string {
	all := make([]string, len(s.hosts))
	for i, h := range s.hosts {
		all[i] = h.Address
	}
	return all
}

// NotAfter is when Fencepost's own certificate for Postgres expires. It is zero if there is none.
func (s *Servers) NotAfter() time.Time { return s.hosts[0].TLS.NotAfter() } // all hosts have the same files

// Reload reads the TLS files again. What is wrong with them is logged, and returned.
func (s *Servers) Reload() error {
	var errs []error
	for _, h := range s.hosts {
		errs = append(errs, h.TLS.Reload())
	}
	return errors.Join(errs...)
}
