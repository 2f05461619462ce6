// Package routes gives a resource to connections that name none themselves. It only decides:
// it does no I/O, and knows neither the configuration file nor the proxy.
package routes

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

// Route gives its resource to the connections that it matches.
type Route struct {
	Match    Match
	Resource string
	// Worker says which worker such a connection is, if it does not name one: the word
	// ByApplicationName, one of the words of worker.identity, or the worker's id itself. ""
	// means what worker.identity says.
	Worker string
	// Campaign is on, wait or off, or "" for on.
	Campaign string
}

// ByApplicationName is the value of Route.Worker that takes the connection's application_name
// for the worker's id.
const ByApplicationName = "application_name"

// identities are the words of worker.identity.
var identities = []string{"connection", "client_address", "proxy"}

// Words are the values of Route.Worker that are not the id of a worker.
func Words() []string { return append([]string{ByApplicationName}, identities...) }

// Connection is what is known of a connection when it begins.
type Connection struct {
	User, Database string
	// ApplicationName is what the client has sent at startup, "" if nothing.
	ApplicationName string
	// Client is the client's address. It is not valid for a client on a Unix socket.
	Client netip.Addr
}

// Match is what a connection must be for a route. What is "" or nil is not asked for.
type Match struct {
	User, Database, ApplicationName Pattern
	// Clients are the addresses that a client may have, one of them. No client on a Unix
	// socket has any.
	Clients []netip.Prefix
}

// Miss is a part of a Match that a connection does not meet.
type Miss struct{ Setting, Got, Want string }

func (m Miss) String() string { return fmt.Sprintf("%s is %s, not %s", m.Setting, m.Got, m.Want) }

// Misses returns what keeps the connection from matching; nothing if it matches.
func (m Match) Misses(c Connection) (misses []Miss) {
	for _, f := range []struct {
		setting, got string
		want         Pattern
	}{{"user", c.User, m.User}, {"database", c.Database, m.Database}, {"application_name", c.ApplicationName, m.ApplicationName}} {
		if f.want != "" && !f.want.Matches(f.got) {
			misses = append(misses, Miss{f.setting, strconv.Quote(f.got), strconv.Quote(string(f.want))})
		}
	}
	contains := func(p netip.Prefix) bool { return p.Contains(c.Client.WithZone("")) }
	if m.Clients != nil && !slices.ContainsFunc(m.Clients, contains) {
		misses = append(misses, Miss{"client", fencing.ClientName(c.Client), list(m.Clients)})
	}
	return misses
}

func list(prefixes []netip.Prefix) string {
	words := make([]string, len(prefixes))
	for i, p := range prefixes {
		words[i] = p.String()
	}
	return strings.Join(words, ", ")
}

// Covers reports whether every connection that matches other also matches m.
func (m Match) Covers(other Match) bool {
	if !m.User.covers(other.User) || !m.Database.covers(other.Database) || !m.ApplicationName.covers(other.ApplicationName) {
		return false
	}
	if m.Clients == nil {
		return true
	}
	within := func(o netip.Prefix) bool {
		return slices.ContainsFunc(m.Clients, func(p netip.Prefix) bool { return p.Bits() <= o.Bits() && p.Contains(o.Addr()) })
	}
	return other.Clients != nil && !slices.ContainsFunc(other.Clients, func(o netip.Prefix) bool { return !within(o) })
}

// First returns the index of the first route that matches, -1 if none does.
func First(all []Route, c Connection) int {
	return slices.IndexFunc(all, func(r Route) bool { return len(r.Match.Misses(c)) == 0 })
}

// defaultNames are names that drivers and programs send by themselves.
var defaultNames = []string{
	"psql", "pg_dump", "pg_dumpall", "pg_restore", "pg_basebackup", "pgbench", "vacuumdb", "reindexdb",
	"PostgreSQL JDBC Driver",
}

// WorkerOf returns the id of the worker that a matching connection belongs to, or else which
// word of worker.identity decides that; both are "" if the route does not say. The error says
// why the connection's application_name cannot be an id.
func (r Route) WorkerOf(c Connection) (id, identity string, err error) {
	switch {
	case r.Worker == "" || slices.Contains(identities, r.Worker):
		return "", r.Worker, nil
	case r.Worker != ByApplicationName:
		return r.Worker, "", nil
	case c.ApplicationName == "":
		return "", "", errors.New("the client sends no application_name, which is to be the id of its worker")
	case c.ApplicationName == r.Match.ApplicationName.prefix():
		return "", "", fmt.Errorf("the application_name is %q, with nothing in the place of the *: the id of a worker must differ for each process", c.ApplicationName)
	case slices.Contains(defaultNames, c.ApplicationName):
		return "", "", fmt.Errorf("the application_name %q is what every process of that program sends: the id of a worker must differ for each process", c.ApplicationName)
	case !fencing.ValidName(c.ApplicationName):
		return "", "", fmt.Errorf("the application_name %q cannot be the id of a worker", c.ApplicationName)
	default:
		return c.ApplicationName, "", nil
	}
}
