package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/routes"
)

// Routes give resources to connections that name none; the first one that matches counts.
type Routes []Route

// Route gives its resource to the connections that it matches. See routes.Route.
type Route struct {
	Match    Match  `yaml:"match"`
	Resource string `yaml:"resource"`
	Worker   string `yaml:"worker"`
	Campaign string `yaml:"campaign"` // "on", "wait" or "off"; "" means on
}

// Match is what a connection must be for a route.
type Match struct {
	User            routes.Pattern `yaml:"user"`
	Database        routes.Pattern `yaml:"database"`
	ApplicationName routes.Pattern `yaml:"application_name"`
	Client          Subnets        `yaml:"client"`
}

// List returns the routes as package routes takes them.
func (l Routes) List() []routes.Route {
	list := make([]routes.Route, len(l))
	for i, r := range l {
		list[i] = routes.Route{Match: r.Match.rule(), Resource: r.Resource, Worker: r.Worker, Campaign: r.Campaign}
	}
	return list
}

func (m Match) rule() routes.Match {
	return routes.Match{User: m.User, Database: m.Database, ApplicationName: m.ApplicationName, Clients: m.Client.Prefixes()}
}

// String returns the routes in one line.
func (l Routes) String() string {
	lines := make([]string, len(l))
	for i, r := range l {
		lines[i] = r.String()
	}
	return strings.Join(lines, "; ")
}

func (r Route) String() string {
	var parts []string
	for _, p := range []struct{ key, value string }{
		{"user", string(r.Match.User)}, {"database", string(r.Match.Database)}, {"application_name", string(r.Match.ApplicationName)},
		{"client", r.Match.Client.String()}, {"-> resource", r.Resource}, {"worker", r.Worker}, {"campaign", r.Campaign},
	} {
		if p.value != "" {
			parts = append(parts, p.key+" "+p.value)
		}
	}
	return strings.Join(parts, " ")
}

// validateRoutes reports what is wrong with the routes, and those that no connection reaches.
func (c *Config) validateRoutes(fault Fault) {
	for i, r := range c.Routes {
		where := routes.Name(i)
		r.Match.validate(fault, where+".match")
		c.validateTarget(fault, where, r)
		r.validateWorker(fault, where+".worker")
		if r.Campaign != "" {
			checkWord(fault, where+".campaign", r.Campaign, "on", "wait", "off")
		}
		for j, earlier := range c.Routes[:i] {
			if !earlier.Match.isEmpty() && earlier.Match.rule().Covers(r.Match.rule()) {
				fault("%s is never used: %s matches every connection that it matches; put it in front, or remove it", where, routes.Name(j))
				break
			}
		}
	}
}

// mostName is the length in bytes to which Postgres cuts names (NAMEDATALEN - 1).
const mostName = 63

// isEmpty reports whether the match has no condition. A list of clients that is empty is none.
func (m Match) isEmpty() bool {
	return m.User == "" && m.Database == "" && m.ApplicationName == "" && len(m.Client) == 0
}

func (m Match) validate(fault Fault, where string) {
	switch {
	case m.Client != nil && len(m.Client) == 0:
		fault("%s.client is empty: name the addresses that clients may have, or leave it out", where)
	case m.isEmpty():
		fault(`%s is missing or empty: say which connections the route is for, as in match: {user: app} (user: "*" is all of them)`, where)
	}
	for _, f := range []struct {
		name    string
		pattern routes.Pattern
	}{{"user", m.User}, {"database", m.Database}} {
		if n := len(strings.TrimSuffix(string(f.pattern), "*")); n > mostName {
			fault("%s.%s has %d bytes: Postgres cuts names to %d, so that nothing matches", where, f.name, n, mostName)
		}
	}
}

// validateTarget checks the resource of a route, and that someone whom the route matches may
// campaign for it.
func (c *Config) validateTarget(fault Fault, where string, r Route) {
	listed, known := c.Resources[r.Resource]
	switch {
	case r.Resource == "":
		fault("%s.resource is missing: name the resource of the connections that the route matches", where)
	case !fencing.ValidName(r.Resource):
		fault("%s.resource has an invalid name of %d bytes: %s", where, len(r.Resource), fencing.NameRule)
	case !known && c.OnlyKnown():
		meant := "list it there"
		if near := nearest(r.Resource, slices.Sorted(maps.Keys(c.Resources))); near != "" {
			meant = fmt.Sprintf("did you mean %q?", near)
		}
		fault("%s.resource is %q, which resources does not list (unknown_resources: deny): %s", where, r.Resource, meant)
	case r.Campaign != "off" && listed.Users != nil && !slices.ContainsFunc(listed.Users, r.Match.User.Matches):
		fault("%s.match.user is %q, but resources.%s.users lists no such user: add one there, or set campaign: off", where, r.Match.User, r.Resource)
	}
}

// validateWorker refuses values by which several processes would be one worker without
// anyone having said so.
func (r Route) validateWorker(fault Fault, where string) {
	words := routes.Words()
	name := r.Match.ApplicationName
	switch {
	case r.Worker == "":
	case r.Worker == routes.ByApplicationName && (!name.Open() || name == "*"):
		fault("%s is application_name: set match.application_name to the beginning that the names of this program have in common, and a *, "+
			`as in application_name: "invoicer-*". Otherwise, all clients that send the same name, such as the default of a driver, are one worker`, where)
	case slices.Contains(words, r.Worker):
	case !fencing.ValidName(r.Worker):
		fault("%s is an invalid name of %d bytes: %s", where, len(r.Worker), fencing.NameRule)
	default:
		if near := nearest(r.Worker, words); near != "" {
			fault("%s is %q: did you mean %q? If it is meant to be the id of one worker, choose one that is less similar", where, r.Worker, near)
		}
	}
}
