package proxy

import (
	"fmt"
	"strings"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/appname"
)

const fencePrefix = "fencepost."

// refuseReplication returns the refusal of a value of the replication parameter, nil if
// it asks for no replication. Postgres takes any prefix of true, false, yes, no, on and
// off that is not ambiguous (parse_bool), and "database" as it is.
func refuseReplication(value string) error {
	v := strings.ToLower(value)
	is := func(word string, least int) bool { return len(v) >= least && strings.HasPrefix(word, v) }
	switch {
	case is("false", 1), is("no", 1), is("off", 2), v == "0":
		return nil
	case value == "database", is("true", 1), is("yes", 1), is("on", 2), v == "1":
		return fencing.ReplicationRefusal
	default:
		return &fencing.Refusal{
			SQLState: "22023",
			Message:  fmt.Sprintf("invalid value for parameter \"replication\": \"%s\"", fencing.ASCII(value)),
			Hint:     `Valid values are: "false", 0, "true", 1, "database".`,
			Verbatim: true,
		}
	}
}

// set takes one fencepost.* parameter. Its error is a *Refusal.
func (o *ownParams) set(name, value string) error {
	bad := func(hint string) error {
		return &fencing.Refusal{
			SQLState: "22023",
			Message:  fmt.Sprintf("invalid value for parameter %q: %q", fencing.ASCII(strings.ToLower(name)), fencing.ASCII(value)),
			Hint:     hint,
		}
	}
	switch strings.ToLower(name) {
	case "fencepost.resource", "fencepost.worker":
		if !fencing.ValidName(value) {
			return bad(fencing.NameRule)
		}
		if strings.HasSuffix(strings.ToLower(name), "resource") {
			o.resource = value
		} else {
			o.worker = value
		}
	case "fencepost.campaign":
		switch value {
		case "on":
			o.campaign = fencing.CampaignOn
		case "wait":
			o.campaign = fencing.CampaignWait
		case "off":
			o.campaign = fencing.CampaignOff
		default:
			return bad("Use on, wait or off.")
		}
		o.campaigns = true
	case "fencepost.token":
		token, ok := fencing.ParseToken(value)
		if !ok {
			return bad(fencing.TokenRule)
		}
		o.token = token
	case "fencepost.worker_timeout":
		d, ok := parseDuration(value)
		if !ok {
			return bad("Use a duration like 30s, or 0 for never.")
		}
		o.workerTimeout = d
	case "fencepost.heartbeat":
		d, ok := parseDuration(value)
		if !ok {
			return bad("Use a duration like 1s, or 0 for none.")
		}
		o.heartbeat = d
	default:
		return &fencing.Refusal{
			SQLState: "22023",
			Message:  fmt.Sprintf("unrecognized parameter %q", fencing.ASCII(name)),
			Hint:     "Fencepost knows fencepost.resource, fencepost.worker, fencepost.campaign, fencepost.worker_timeout, fencepost.heartbeat and fencepost.token.",
		}
	}
	return nil
}

// parseDuration reads a duration with its unit, or 0. A negative one is none.
func parseDuration(value string) (d time.Duration, ok bool) {
	if value == "0" {
		return 0, true
	}
	d, err := time.ParseDuration(value)
	return d, err == nil && d >= 0
}

// applyRoute takes from the route what the client has not named.
func (o *ownParams) applyRoute(r Route) {
	if r.Name == "" || o.resource != "" {
		return
	}
	o.resource = r.Resource
	if o.worker == "" {
		o.worker = r.Worker
	}
	if !o.campaigns {
		o.campaign = r.Campaign
	}
}

// validate returns the refusal of parameters that mean nothing without a resource: their
// client believes that it is fenced.
func (o *ownParams) validate() error {
	name := ""
	switch {
	case o.resource != "":
	case o.worker != "":
		name = "fencepost.worker"
	case o.campaigns:
		name = "fencepost.campaign"
	case o.workerTimeout >= 0:
		name = "fencepost.worker_timeout"
	case o.heartbeat > 0:
		name = "fencepost.heartbeat"
	case o.token != 0:
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

// splitOptions separates the settings whose name is one of those wanted from the rest of the
// parameter options. It reads the parameter as PostgreSQL's pg_split_opts does: white space
// separates words, a backslash escapes the next byte, and a setting has the form -c name=value,
// -cname=value or --name=value, perhaps after other switches, as in -ec name=value. own is name,
// value, …; kept is the rest, with its bytes unchanged.
func splitOptions(options string, wanted func(name string) bool) (kept string, own []string) {
	words := optionWords(options)
	var keep []string
	for i := 0; i < len(words); i++ {
		before, setting, used := settingIn(words[i:])
		name, value, ok := strings.Cut(setting, "=")
		name = strings.ReplaceAll(name, "-", "_") // as PostgreSQL reads --name
		if ok && wanted(name) {
			own = append(own, name, value)
			if before != "" {
				keep = append(keep, before)
			}
		} else {
			for _, w := range words[i : i+used] {
				keep = append(keep, w.raw)
			}
		}
		i += used - 1
	}
	if len(own) == 0 {
		return options, nil
	}
	return strings.Join(keep, " "), own
}

// The switches of a server process that take no argument, and those that do. process_postgres_switches
// has them, in all supported versions.
const (
	switches             = "EFOPTbeijlns"
	switchesWithArgument = "BCDNSWcdfhkprtv-"
)

// settingIn returns the setting that begins in the first of the words, "" if there is none, and how many
// words are used. It reads them as getopt does: several switches may share a word, and the argument of
// the last is the rest of the word, or the next word. before are the switches before the setting.
func settingIn(words []optionWord) (before, setting string, used int) {
	text := words[0].text
	switch {
	case text == "--": // nothing after it is a switch
		return "", "", len(words)
	case len(text) < 2 || text[0] != '-':
		return "", "", 1
	}
	at := 1
	for at < len(text) && strings.IndexByte(switches, text[at]) >= 0 {
		at++
	}
	if at == len(text) || strings.IndexByte(switchesWithArgument, text[at]) < 0 {
		return "", "", 1
	}
	argument, used := text[at+1:], 1
	if argument == "" && len(words) > 1 {
		argument, used = words[1].text, 2
	}
	if text[at] != 'c' && text[at] != '-' {
		return "", "", used
	}
	if at > 1 {
		before = text[:at]
	}
	return before, argument, used
}

// optionWord is a word of the parameter options, as it was sent and without its escapes.
type optionWord struct{ raw, text string }

// optionWords splits the parameter options.
func optionWords(s string) []optionWord {
	var words []optionWord
	for i := 0; i < len(s); {
		if isOptionSpace(s[i]) {
			i++
			continue
		}
		start := i
		var text strings.Builder
		for i < len(s) && !isOptionSpace(s[i]) {
			if s[i] == '\\' && i+1 < len(s) {
				i++
			}
			text.WriteByte(s[i])
			i++
		}
		words = append(words, optionWord{raw: s[start:i], text: text.String()})
	}
	return words
}

func isOptionSpace(c byte) bool { return strings.IndexByte(" \t\n\v\f\r", c) >= 0 }

// applicationName returns the application_name that the client has asked for, "" if none. One
// in the parameter options counts only without a parameter of its own, and the last one
// counts, as in PostgreSQL.
func (s *startup) applicationName() (name string) {
	for i := len(s.params) - 2; i >= 0; i -= 2 {
		if appname.Is(s.params[i]) {
			return s.params[i+1]
		}
	}
	for i := 0; i < len(s.params); i += 2 {
		if s.params[i] == "options" {
			_, names := splitOptions(s.params[i+1], appname.Is)
			if len(names) > 0 {
				name = names[len(names)-1]
			}
		}
	}
	return name
}

// protocolOptions returns the names of the options of the protocol that the client has asked for.
func (s *startup) protocolOptions() (options []string) {
	for i := 0; i < len(s.params); i += 2 {
		if strings.HasPrefix(s.params[i], "_pq_.") {
			options = append(options, s.params[i])
		}
	}
	return options
}
