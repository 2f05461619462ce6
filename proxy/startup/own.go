package startup

import (
	"fmt"
	"strings"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

const fencePrefix = "fencepost."

// Own are the fencepost.* parameters, which are not sent to the server.
type Own struct {
	Resource, Worker string
	Campaign         fencing.CampaignMode
	campaigns        bool          // Campaign was named
	WorkerTimeout    time.Duration // negative: not named
	Heartbeat        time.Duration // 0: none
	Token            int64         // 0: none
}

// set takes one fencepost.* parameter. Its error is a *Refusal.
func (o *Own) set(name, value string) error {
	name = strings.ToLower(name)
	bad := func(hint string) error {
		return &fencing.Refusal{
			SQLState: "22023",
			Message:  fmt.Sprintf("invalid value for parameter %q: %q", fencing.ASCII(name), fencing.ASCII(value)),
			Hint:     hint,
		}
	}
	switch name {
	case "fencepost.resource":
		if !fencing.ValidName(value) {
			return bad(fencing.NameRule)
		}
		o.Resource = value
	case "fencepost.worker":
		if !fencing.ValidName(value) {
			return bad(fencing.NameRule)
		}
		o.Worker = value
	case "fencepost.campaign":
		switch value {
		case "on":
			o.Campaign = fencing.CampaignOn
		case "wait":
			o.Campaign = fencing.CampaignWait
		case "off":
			o.Campaign = fencing.CampaignOff
		default:
			return bad("Use on, wait or off.")
		}
		o.campaigns = true
	case "fencepost.token":
		token, ok := fencing.ParseToken(value)
		if !ok {
			return bad(fencing.TokenRule)
		}
		o.Token = token
	case "fencepost.worker_timeout":
		d, ok := parseDuration(value)
		if !ok {
			return bad("Use a duration like 30s, or 0 for never.")
		}
		o.WorkerTimeout = d
	case "fencepost.heartbeat":
		d, ok := parseDuration(value)
		if !ok {
			return bad("Use a duration like 1s, or 0 for none.")
		}
		o.Heartbeat = d
	default:
		return &fencing.Refusal{
			SQLState: "22023",
			Message:  fmt.Sprintf("unrecognized parameter %q", fencing.ASCII(name)),
			Hint:     "Fencepost knows fencepost.resource, fencepost.worker, fencepost.campaign, fencepost.worker_timeout, fencepost.heartbeat and fencepost.token.",
		}
	}
	return nil
}

// parseDuration reads a duration with its unit, or 0. Negative durations are rejected.
func parseDuration(value string) (d time.Duration, ok bool) {
	if value == "0" {
		return 0, true
	}
	d, err := time.ParseDuration(value)
	return d, err == nil && d >= 0
}

// ApplyRoute takes from a route what the client has not named.
func (o *Own) ApplyRoute(resource, worker string, campaign fencing.CampaignMode) {
	if o.Resource != "" {
		return
	}
	o.Resource = resource
	if o.Worker == "" {
		o.Worker = worker
	}
	if !o.campaigns {
		o.Campaign = campaign
	}
}

// Validate returns the refusal of parameters that mean nothing without a resource: their
// client believes that it is fenced.
func (o *Own) Validate() error {
	name := ""
	switch {
	case o.Resource != "":
	case o.Worker != "":
		name = "fencepost.worker"
	case o.campaigns:
		name = "fencepost.campaign"
	case o.WorkerTimeout >= 0:
		name = "fencepost.worker_timeout"
	case o.Heartbeat > 0:
		name = "fencepost.heartbeat"
	case o.Token != 0:
		name = "fencepost.token"
	}
	if name == "" {
		return nil
	}
	return &fencing.Refusal{
		SQLState: "22023",
		Message:  fmt.Sprintf("%s is set, but fencepost.resource is not: the connection would not be fenced", name),
		Hint:     fmt.Sprintf("Set fencepost.resource too, add a route for the connection to Fencepost's configuration, or leave out %s to connect without a resource.", name),
	}
}

// isOwn reports whether a parameter is one of Fencepost's.
func isOwn(name string) bool { return strings.HasPrefix(strings.ToLower(name), fencePrefix) }
