package routes

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// billing asks for everything that can be asked for.
var billing = Match{User: "billing_app", Database: "shop", ApplicationName: "invoicer-*", Clients: prefixes("10.0.3.0/24", "fd00::/8")}

func TestMatches(t *testing.T) {
	t.Parallel()
	tcp := netip.MustParseAddr("10.0.3.7")
	for _, c := range []struct {
		name  string
		match Match
		with  Connection
		want  string // the settings that do not match
	}{
		{"all parts", billing, Connection{"billing_app", "shop", "invoicer-1", tcp}, ""},
		{"another range", billing, Connection{"billing_app", "shop", "invoicer-1", netip.MustParseAddr("fd00::1")}, ""},
		{"an address with a zone", Match{Clients: prefixes("fe80::/10")}, Connection{"u", "d", "", netip.MustParseAddr("fe80::1%eth0")}, ""},
		{"nothing in the place of the *", billing, Connection{"billing_app", "shop", "invoicer-", tcp}, ""},
		{"another user", billing, Connection{"billing_app2", "shop", "invoicer-1", tcp}, "user"},
		{"a user in upper case", billing, Connection{"Billing_app", "shop", "invoicer-1", tcp}, "user"},
		{"another database", billing, Connection{"billing_app", "shop2", "invoicer-1", tcp}, "database"},
		{"a name without the prefix", billing, Connection{"billing_app", "shop", "old-invoicer-1", tcp}, "application_name"},
		{"no name", billing, Connection{"billing_app", "shop", "", tcp}, "application_name"},
		{"another network", billing, Connection{"billing_app", "shop", "invoicer-1", netip.MustParseAddr("10.0.4.7")}, "client"},
		{"a Unix socket", billing, Connection{"billing_app", "shop", "invoicer-1", netip.Addr{}}, "client"},
		{"a Unix socket and every address", Match{Clients: prefixes("0.0.0.0/0", "::/0")}, Connection{"u", "d", "", netip.Addr{}}, "client"},
		{"a Unix socket, where no address is asked for", Match{User: "u"}, Connection{"u", "d", "", netip.Addr{}}, ""},
		{"everything", Match{User: "*"}, Connection{"u", "d", "", netip.Addr{}}, ""},
		{"nothing", billing, Connection{"u", "d", "", netip.Addr{}}, "user database application_name client"},
	} {
		var got []string
		for _, m := range c.match.Misses(c.with) {
			got = append(got, m.Setting)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q does not match, want %q", c.name, got, c.want)
		}
	}
}

func TestTheFirstMatchCounts(t *testing.T) {
	t.Parallel()
	list := []Route{{Match: Match{User: "a*"}}, {Match: Match{User: "ab"}}, {Match: Match{Database: "d"}}}
	for c, want := range map[Connection]int{{User: "ab"}: 0, {User: "ab", Database: "d"}: 0, {User: "b", Database: "d"}: 2, {User: "b"}: -1} {
		if got := First(list, c); got != want {
			t.Errorf("%+v: route %d, want %d", c, got, want)
		}
	}
}

func TestPatterns(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"a": "", "a*": "", "*": "", "": "empty", "a*b": "last character", "**": "last character"} {
		var p Pattern
		err := p.UnmarshalText([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestCovers compares the answer with what a sample of connections says.
func TestCovers(t *testing.T) {
	t.Parallel()
	names := []Pattern{"", "*", "a*", "a", "ab*", "ab", "b"}
	clients := [][]netip.Prefix{nil, prefixes("10.0.0.0/8"), prefixes("10.1.0.0/16", "10.2.0.0/16"), prefixes("10.1.0.0/16"), prefixes("10.0.0.0/16"), prefixes("192.168.0.0/16")}
	var matches []Match
	var sample []Connection
	for _, user := range names {
		for _, name := range names {
			for _, list := range clients {
				matches = append(matches, Match{User: user, ApplicationName: name, Clients: list})
			}
		}
	}
	for _, user := range []string{"a", "ab", "abc", "ac", "b", "c"} {
		for _, name := range []string{"", "a", "ab", "abc", "ac", "b", "c"} {
			for _, client := range []string{"10.0.0.1", "10.1.0.1", "10.2.0.1", "192.168.0.1", "1.1.1.1"} {
				sample = append(sample, Connection{User: user, ApplicationName: name, Client: netip.MustParseAddr(client)})
			}
			sample = append(sample, Connection{User: user, ApplicationName: name})
		}
	}
	matched := make([][]bool, len(matches))
	for i, m := range matches {
		for _, c := range sample {
			matched[i] = append(matched[i], len(m.Misses(c)) == 0)
		}
	}
	for i, m := range matches {
		for j, other := range matches {
			want := true
			for n := range sample {
				want = want && (matched[i][n] || !matched[j][n])
			}
			if got := m.Covers(other); got != want {
				t.Fatalf("%+v covers %+v: %t, want %t", m, other, got, want)
			}
		}
	}
}

func TestWorkers(t *testing.T) {
	t.Parallel()
	match := Match{ApplicationName: "invoicer-*"}
	for _, c := range []struct{ worker, name, id, identity, err string }{
		{"", "invoicer-7", "", "", ""},
		{"connection", "invoicer-7", "", "connection", ""},
		{"client_address", "invoicer-7", "", "client_address", ""},
		{"proxy", "invoicer-7", "", "proxy", ""},
		{"biller", "invoicer-7", "biller", "", ""},
		{"application_name", "invoicer-7", "invoicer-7", "", ""},
		{"application_name", "invoicer-", "", "", "nothing in the place of the *"},
		{"application_name", "", "", "", "no application_name"},
		{"application_name", "psql", "", "", "every process of that program"},
		{"application_name", "invoicer-\n", "", "", "cannot be the id"},
		{"application_name", "invoicer-" + strings.Repeat("x", fencing.MaxName), "", "", "cannot be the id"},
	} {
		id, identity, err := Route{Match: match, Worker: c.worker}.WorkerOf(Connection{ApplicationName: c.name})
		if id != c.id || identity != c.identity || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("worker %q of %q: %q, %q, %v; want %q, %q, %q", c.worker, c.name, id, identity, err, c.id, c.identity, c.err)
		}
	}
}

func TestExplanation(t *testing.T) {
	t.Parallel()
	e := Explanation{
		Routes: []Route{
			{Match: Match{User: "ops", Database: "shop"}, Resource: "ops"},
			{Match: billing, Resource: "billing", Worker: "application_name", Campaign: "wait"},
			{Match: Match{Database: "shop"}, Resource: "shop"},
		},
		Identity: "client_address", Unfenced: "refuse",
		Users: func(resource string) []string { return map[string][]string{"shop": {"clerk"}}[resource] },
	}
	for _, c := range []struct {
		with Connection
		want string
	}{
		{Connection{"billing_app", "shop", "invoicer-7", netip.MustParseAddr("10.0.3.7")}, `routes.1  no: user is "billing_app", not "ops"
routes.2  matches
routes.3  would match too, but routes.2 comes first
  resource  billing
  worker    invoicer-7
  campaign  wait
`},
		{Connection{"billing_app", "shop", "", netip.Addr{}}, `routes.1  no: user is "billing_app", not "ops"
routes.2  no: application_name is "", not "invoicer-*"; client is local, not 10.0.3.0/24, fd00::/8
routes.3  matches
  resource  shop
  worker    client:local
  campaign  on
  refused   28000: user "billing_app" is not among resources.shop.users
`},
		{Connection{"billing_app", "other", "invoicer-", netip.MustParseAddr("10.0.3.7")}, `routes.1  no: user is "billing_app", not "ops"; database is "other", not "shop"
routes.2  no: database is "other", not "shop"
routes.3  no: database is "other", not "shop"
no route matches: the connection is not fenced
  unfenced  refuse: it is refused
`},
	} {
		var text strings.Builder
		e := e
		e.Connection = c.with
		if err := e.Write(&text); err != nil || text.String() != c.want {
			t.Errorf("%+v: %v\n%s\nwant\n%s", c.with, err, text.String(), c.want)
		}
	}
}
