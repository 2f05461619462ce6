package routes

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

// Explanation is what a configuration means for one connection that names no resource.
type Explanation struct {
	Connection Connection
	Routes     []Route
	// Users returns the users that may campaign for a resource, nil if all may.
	Users func(resource string) []string
	// Identity is the setting worker.identity, and Unfenced what the connection may do if no
	// route matches: allow, read-only or refuse.
	Identity, Unfenced string
}

// Write writes the explanation.
func (e Explanation) Write(to io.Writer) error {
	var text strings.Builder
	first := First(e.Routes, e.Connection)
	for i, r := range e.Routes {
		switch misses := r.Match.Misses(e.Connection); {
		case i == first:
			fmt.Fprintf(&text, "%s  matches\n", Name(i))
		case len(misses) == 0:
			fmt.Fprintf(&text, "%s  would match too, but %s comes first\n", Name(i), Name(first))
		default:
			fmt.Fprintf(&text, "%s  no: %s\n", Name(i), joined(misses))
		}
	}
	if first < 0 {
		fmt.Fprintf(&text, "no route matches: the connection is not fenced\n  unfenced  %s\n", unfenced[e.Unfenced])
	} else {
		e.target(&text, e.Routes[first])
	}
	_, err := io.WriteString(to, text.String())
	return err
}

// Name returns the name of a route in messages, by its index.
func Name(i int) string { return fmt.Sprintf("routes.%d", i+1) }

func joined(misses []Miss) string {
	words := make([]string, len(misses))
	for i, m := range misses {
		words[i] = m.String()
	}
	return strings.Join(words, "; ")
}

// unfenced says what the words of the setting unfenced mean.
var unfenced = map[string]string{
	"allow":     "allow: it may write without any check",
	"read-only": "read-only: its writes are refused",
	"refuse":    "refuse: it is refused",
}

// target writes what the connection joins.
func (e Explanation) target(text *strings.Builder, r Route) {
	fmt.Fprintf(text, "  resource  %s\n", r.Resource)
	id, identity, err := r.WorkerOf(e.Connection)
	if identity == "" {
		identity = e.Identity
	}
	switch {
	case err != nil:
		fmt.Fprintf(text, "  refused   22023: %v\n", err)
	case id != "":
		fmt.Fprintf(text, "  worker    %s\n", id)
	case identity == "client_address":
		fmt.Fprintf(text, "  worker    client:%s\n", fencing.ClientName(e.Connection.Client))
	case identity == "proxy":
		fmt.Fprint(text, "  worker    that of this proxy\n")
	default:
		fmt.Fprint(text, "  worker    one of its own for each connection\n")
	}
	campaign := r.Campaign
	if campaign == "" {
		campaign = "on"
	}
	fmt.Fprintf(text, "  campaign  %s\n", campaign)
	if users := e.Users(r.Resource); campaign != "off" && users != nil && !slices.Contains(users, e.Connection.User) {
		fmt.Fprintf(text, "  refused   28000: user %q is not among resources.%s.users\n", e.Connection.User, r.Resource)
	}
}
