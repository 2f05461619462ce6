package system

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// named connects with an application_name and these parameters of Fencepost's only. header, if
// not "", is sent before everything else.
func (h *cluster) named(p *process.Server, name, header string, params ...string) (*client, error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	config, err := pgx.ParseConfig(p.DSN(pgtest.App, h.db, params...))
	if err != nil {
		h.t.Fatal(err)
	}
	if name != "" {
		config.RuntimeParams["application_name"] = name
	}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil || header == "" {
			return conn, err
		}
		_, err = conn.Write([]byte(header))
		return conn, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	c := &client{Conn: conn, t: h.t}
	h.t.Cleanup(c.leave)
	return c, nil
}

// TestRoutesNameWhatConnectionsDoNot: a plain DSN leads, what the client says itself comes
// first, and whatever a route cannot decide is refused.
func TestRoutesNameWhatConnectionsDoNot(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(`
routes:
  - {match: {user: nobody}, resource: other}
  - {match: {user: app, database: "*", application_name: "invoicer-*", client: [192.0.2.0/24, 127.0.0.1]}, resource: billing, worker: application_name, campaign: wait}
  - {match: {application_name: closed}, resource: closed, worker: night}
  - {match: {application_name: watcher}, resource: closed, campaign: off}
  - {match: {application_name: nightly}, resource: mail, worker: client_address}
resources: {closed: {users: [boss]}, billing: {worker_timeout: 0s}, mail: {worker_timeout: 0s}, mine: {worker_timeout: 0s}}
unfenced: refuse
`)
	join := func(name string, params ...string) *client {
		t.Helper()
		c, err := h.named(p, name, "", params...)
		if err != nil {
			t.Fatalf("connect as %s with %v: %v", name, params, err)
		}
		return c
	}
	leader := join("invoicer-7")
	leader.must("INSERT INTO work VALUES ('routed')")
	for _, c := range []struct {
		what, name string
		params     []string
		shows      string
	}{
		{"a second connection of the worker", "invoicer-7", nil, "billing invoicer-7 leader"},
		{"a client that names its campaign", "invoicer-8", []string{"campaign", "off"}, "billing invoicer-8 follower"},
		{"a client that names its worker", "invoicer-8", []string{"worker", "w", "campaign", "on"}, "billing w follower"},
		{"a client that names its resource", "invoicer-8", []string{"resource", "mine", "worker", "w"}, "mine w leader"},
		{"a client whose address names the worker", "nightly", nil, "mail client:127.0.0.1 leader"},
	} {
		client := join(c.name, c.params...)
		if got := client.show("resource") + " " + client.show("worker") + " " + client.show("role"); got != c.shows {
			t.Errorf("%s is %q, want %q", c.what, got, c.shows)
		}
	}
	if watcher := join("watcher"); watcher.show("resource") != "closed" || watcher.show("role") != "follower" {
		t.Error("a user that may not campaign cannot observe")
	}
	for _, c := range []struct {
		what, name string
		params     []string
		state      string
		says       []string
	}{
		{"a name without anything behind the prefix", "invoicer-", nil, "22023", []string{"[22023]", "routes.2", "nothing in the place of the *", "fencepost.worker"}},
		{"a user that may not campaign", "closed", nil, "28000",
			[]string{"[28000]", `user "app" may not campaign for resource "closed"`, "resources.<name>.users", "fencepost.campaign=off", "routes.3"}},
		{"a connection without a route", "psql", nil, "ZF002", []string{"names no resource", "explain-route"}},
		{"a connection without a name", "", nil, "ZF002", []string{"names no resource"}},
		{"a worker without a resource and without a route", "", []string{"worker", "w"}, "22023", []string{"fencepost.resource is not", "route"}},
	} {
		_, err := h.named(p, c.name, "", c.params...)
		wantFailure(t, c.what, err, c.state, c.says...)
	}
	if granted := h.granted(); granted != "invoicer-7" {
		t.Errorf("epochs were granted to %q, want invoicer-7 only", granted)
	}
	if _, shown := p.Get(t, "/v1/resources/"+h.db+"/billing"); !strings.Contains(shown, `"leader": "invoicer-7"`) {
		t.Errorf("/v1/resources does not show the leader: %s", shown)
	}
}

// TestRoutesByAddress: behind a load balancer the address in the header counts, and a client
// on a Unix socket has none.
func TestRoutesByAddress(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	path := socketIn(t)
	p, _ := h.configured(`
proxy_protocol: {trusted: 127.0.0.1}
routes:
  - {match: {client: 192.0.2.0/24}, resource: near}
  - {match: {client: [0.0.0.0/0, "::/0"]}, resource: far}
`, "LISTEN=127.0.0.1:0,"+path)
	for header, want := range map[string]string{
		"PROXY TCP4 192.0.2.7 127.0.0.1 5000 6432\r\n":     "near",
		"PROXY TCP4 198.51.100.7 127.0.0.1 5000 6432\r\n":  "far",
		"PROXY TCP6 2001:db8::1 2001:db8::2 5000 6432\r\n": "far",
		"PROXY TCP6 ::ffff:192.0.2.8 ::1 5000 6432\r\n":    "near",
		"PROXY UNKNOWN\r\n": "far", // the load balancer's own address
	} {
		c, err := h.named(p, "", header)
		if err != nil {
			t.Fatalf("%q: %v", header, err)
		}
		if got := c.show("resource"); got != want {
			t.Errorf("%q: resource %q, want %s", header, got, want)
		}
	}
	p.Address = path
	local, err := h.named(p, "", "")
	if err != nil {
		t.Fatal(err)
	}
	wantFailure(t, "a write over a Unix socket, which no route matches", local.exec("INSERT INTO work VALUES ('local')"), "ZF002", "names no resource")
}
