package config

import (
	"strings"
	"testing"
)

func TestRoutesAreRead(t *testing.T) {
	t.Parallel()
	cfg, err := load(t, `
routes:
  - match: {user: billing_app, database: shop, application_name: "invoicer-*", client: 10.0.3.0/24}
    resource: billing
    worker: application_name
    campaign: wait
  - match: {user: "*", client: [10.0.4.0/24, fd00::1]}
    resource: rest
  - match: {database: "*"}
    resource: rest
    campaign: off
`)
	if err != nil {
		t.Fatal(err)
	}
	const want = "user billing_app database shop application_name invoicer-* client 10.0.3.0/24 -> resource billing worker application_name campaign wait; " +
		"user * client 10.0.4.0/24,fd00::1/128 -> resource rest; database * -> resource rest campaign off"
	if got := cfg.Routes.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if list := cfg.Routes.List(); len(list) != 3 || len(list[1].Match.Clients) != 2 || list[2].Match.Clients != nil {
		t.Errorf("got %+v", list)
	}
	next := cfg
	next.Routes = cfg.Routes[:1]
	_, changes := cfg.Reload(&next)
	if len(changes) != 1 || changes[0].Setting != "routes" || !changes[0].Applied || !strings.HasPrefix(want, changes[0].New+"; ") {
		t.Errorf("a reload changes %+v", changes)
	}
}

// TestAllFaultsOfRoutesAtOnce: each with its line.
func TestAllFaultsOfRoutesAtOnce(t *testing.T) {
	t.Parallel()
	path := writeConfig(t, `unknown_resources: deny
resources: {billing: {users: [biller]}}
routes:
  - resource: biling
  - match: {usr: a}
    resource: billing
    wrker: w
  - match: {user: "", database: "a*b"}
    resource: billing
  - match:
      user: app
      client: [10.0.0.1/8]
    resource: billing
    worker: aplication_name
    campaign: maybe
  - match: {user: biller, application_name: psql}
    resource: billing
    worker: application_name
  - match: {user: biller, application_name: "psql*"}
    resource: billing
  - match: {user: biller, application_name: psql-1}
    resource: billing
  - match: {client: []}
  - match: {database: `+strings.Repeat("d", 64)+`}
    resource: "\n"
  -
`)
	_, err := Load(path, []string{"FENCEPOST_ROUTES=x"}, providers)
	if err == nil {
		t.Fatal("no error")
	}
	got := strings.ReplaceAll(err.Error(), path+":", "line ")
	want := `environment variable FENCEPOST_ROUTES is not a setting: resources, routes and unfenced.users can only be set in the file
line 4: routes.1.match is missing or empty: say which connections the route is for, as in match: {user: app} (user: "*" is all of them)
line 4: routes.1.resource is "biling", which resources does not list (unknown_resources: deny): did you mean "billing"?
line 5: unknown setting "routes.2.match.usr": did you mean "routes.2.match.user"?
line 5: routes.2.match is missing or empty: say which connections the route is for, as in match: {user: app} (user: "*" is all of them)
line 7: unknown setting "routes.2.wrker": did you mean "routes.2.worker"?
line 8: routes.3.match.user: a pattern is empty: leave it out if anything may match
line 8: routes.3.match.database: invalid pattern "a*b": a * can only be its last character
line 11: routes.4.match.user is "app", but resources.billing.users lists no such user: add one there, or set campaign: off
line 12: routes.4.match.client: invalid range "10.0.0.1/8": use 10.0.0.0/8 for the range, or 10.0.0.1 for the address
line 14: routes.4.worker is "aplication_name": did you mean "application_name"? If it is meant to be the id of one worker, choose one that is less similar
line 15: routes.4.campaign is "maybe": it must be one of on, wait, off
line 18: routes.5.worker is application_name: set match.application_name to the beginning that the names of this program have in common, and a *, as in application_name: "invoicer-*". Otherwise, all clients that send the same name, such as the default of a driver, are one worker
line 21: routes.7 is never used: routes.6 matches every connection that it matches; put it in front, or remove it
line 23: routes.8.match.client is empty: name the addresses that clients may have, or leave it out
line 23: routes.8.resource is missing: name the resource of the connections that the route matches
line 24: routes.9.match.database has 64 bytes: Postgres cuts names to 63, so that nothing matches
line 25: routes.9.resource has an invalid name of 1 bytes: A name has 1 to 200 bytes of UTF-8, without control characters.
line 26: routes.10.match is missing or empty: say which connections the route is for, as in match: {user: app} (user: "*" is all of them)
line 26: routes.10.resource is missing: name the resource of the connections that the route matches`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
