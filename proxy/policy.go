package proxy

import (
	"fmt"
	"net"
	"net/netip"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

// SessionPolicy is what the configuration decides about one session. The zero value is
// the default.
type SessionPolicy struct {
	// Unfenced is what the connection may do if it names no resource.
	Unfenced UnfencedMode
	// Identity says which worker the connection belongs to if it names none.
	Identity Identity
	// AnnouncePerConnection: if the worker was superseded before, its epoch is announced to each of its
	// connections separately, and to none of them at startup. Otherwise connections that begin
	// after it was announced to one of them get it at startup.
	AnnouncePerConnection bool
	// OnStale says what becomes of the writes of a worker that was superseded.
	OnStale OnStale
	// Fence says what refuses the writes of workers that have not led.
	Fence FenceMode
	// Shadow: the session of a resource is relayed whether it leads or not, and what would have been
	// refused is recorded.
	Shadow bool
	// NameWorker: the application_name of a connection that names a resource shows resource and
	// worker, also to the client.
	NameWorker bool
	// Route is what a client that names no resource is taken to have named.
	Route Route
	// Refusal refuses the connection, unless it is nil.
	Refusal *fencing.Refusal
}

// Route names a resource for a connection that names none itself. What the client does name
// counts before that of the route.
type Route struct {
	Name     string // in messages; "" if there is no route
	Resource string
	Worker   string // "" leaves it to SessionPolicy.Identity
	Campaign fencing.CampaignMode
}

// Policy decides about a session, once, before it begins at Postgres, which then authenticates
// its client under the user's name that the Policy was given. In the request, Resource and
// Worker are empty if the client names none. A Policy must not block.
type Policy func(fencing.JoinRequest) SessionPolicy

// UnfencedMode says what a connection without a resource may do.
type UnfencedMode uint8

const (
	// UnfencedReadOnly lets it read; its writes are refused. The default.
	UnfencedReadOnly UnfencedMode = iota
	// UnfencedAllow relays it, as migrations need it.
	UnfencedAllow
	// UnfencedRefuse refuses it at startup.
	UnfencedRefuse
)

// OnStale says what becomes of the writes of a worker that had an epoch and was superseded.
type OnStale uint8

const (
	// RejectStale refuses them, and ends the connection. The default.
	RejectStale OnStale = iota
	// DiscardStale answers single INSERT, UPDATE, DELETE and MERGE statements as if they had
	// changed nothing, without executing them, and refuses all other writes. The connection
	// continues.
	DiscardStale
)

// FenceMode says what refuses the writes of workers that do not lead, and have not had an epoch
// since they connected.
type FenceMode uint8

const (
	// FenceSession: the proxy, all of them. The default.
	FenceSession FenceMode = iota
	// FenceTables: only the guards of the resource's tables. A connection is refused while
	// there are none.
	FenceTables
)

// Identity says which worker a connection belongs to if it names none.
type Identity uint8

const (
	// IdentityConnection: each connection is a worker of its own.
	IdentityConnection Identity = iota
	// IdentityClientAddress: all connections from one address are one worker.
	IdentityClientAddress
	// IdentityProxy: all connections of this proxy are one worker (a sidecar).
	IdentityProxy
)

// isShadowed reports whether the session names a resource that is in shadow.
func (x *session) isShadowed(policy SessionPolicy) bool {
	return x.start.Own.Resource != "" && policy.Shadow && fencing.Checking
}

// mode is how the writes of a session are treated.
type mode uint8

const (
	passing mode = iota // they pass: they are allowed unfenced, or in shadow
	reading             // they are refused: a connection without a resource
	fenced              // they pass while the worker leads and the backend is registered
)

// chooseMode returns the mode of the session.
func (x *session) chooseMode(policy SessionPolicy) (mode, error) {
	switch {
	case x.isShadowed(policy):
		return passing, nil
	case x.start.Own.Resource != "":
		return fenced, nil
	case policy.Unfenced == UnfencedRefuse:
		return 0, fencing.MissingResourceRefusal(x.start.User)
	case policy.Unfenced == UnfencedAllow, !fencing.Checking:
		return passing, nil
	default:
		return reading, nil
	}
}

// applyPolicy returns the policy of the session. From then on, the client counts as having named
// what the policy's route names for it.
func (x *session) applyPolicy() (SessionPolicy, error) {
	policy := x.srv.cfg.Policy(x.joinRequest())
	if policy.Refusal != nil {
		return policy, policy.Refusal
	}
	x.unfenced = policy.Unfenced
	if r := policy.Route; r.Name != "" {
		x.start.Own.ApplyRoute(r.Resource, r.Worker, r.Campaign)
	}
	return policy, x.start.Own.Validate()
}

// checkApplicationName notes that the client of a connection without a resource has set its application_name. If a
// route would have matched that name at the startup, the connection is not what the operator takes it for: its writes
// would pass unfenced, so renamed returns why it ends.
func (x *session) checkApplicationName(name string) *fencing.Refusal {
	if x.start.Own.Resource != "" {
		return nil
	}
	request := x.joinRequest()
	request.ApplicationName = name
	policy := x.srv.cfg.Policy(request)
	if policy.Route.Name == "" {
		return nil
	}
	x.srv.failing.renamed.Failed(zap.String("route", policy.Route.Name), zap.String("resource", policy.Route.Resource), zap.String("application_name", name),
		zap.String("user", x.start.User), zap.String("database", x.start.Database), zap.Stringer("client", x.client.RemoteAddr()), zap.String("remedy", renamedHint))
	if x.unfenced != UnfencedAllow {
		return nil
	}
	return &fencing.Refusal{
		SQLState: "22023",
		Message: fmt.Sprintf("application_name %q was set after connecting, too late for %s, which gives such connections resource %q: its further writes would pass unfenced, and what it has sent before may have been committed",
			fencing.ASCII(name), policy.Route.Name, policy.Route.Resource),
		Hint: renamedHint,
	}
}

// renamedHint says how a client sends its application_name in time.
const renamedHint = "Let the driver send application_name when it connects (pgjdbc: assumeMinServerVersion=9.0 in the URL), or name the resource by fencepost.resource."

// explain returns the refusal of a resource. If a route has named that resource, and not the
// client, the hint says so.
func (r Route) explain(refusal *fencing.Refusal) *fencing.Refusal {
	if r.Name == "" {
		return refusal
	}
	e := *refusal
	if e.Hint != "" {
		e.Hint += " "
	}
	e.Hint += "The connection named no resource: " + r.Name + " in Fencepost's configuration gave it this one."
	return &e
}

// joinRequest returns the candidacy that the client wants to join, as the client named it.
func (x *session) joinRequest() fencing.JoinRequest {
	own := x.start.Own
	var client netip.Addr // stays invalid for a local client
	if tcp, ok := x.client.RemoteAddr().(*net.TCPAddr); ok {
		client = tcp.AddrPort().Addr().Unmap()
	}
	return fencing.JoinRequest{
		Database: x.start.Database, User: x.start.User, Resource: own.Resource, Worker: own.Worker,
		Client: client, ApplicationName: x.start.ApplicationName(), Campaign: own.Campaign, WorkerTimeout: own.WorkerTimeout,
		Heartbeat: own.Heartbeat, Token: own.Token,
	}
}

// identify gives a worker id to a connection that names no worker.
func (x *session) identify(c *fencing.JoinRequest, by Identity) {
	if c.Worker != "" {
		return
	}
	switch by {
	case IdentityClientAddress:
		c.Worker = "client:" + fencing.ClientName(c.Client)
	case IdentityProxy:
		c.Worker = "proxy:" + x.srv.cfg.ProxyID
		c.Client = netip.Addr{} // all clients of this proxy are one worker
	default:
		c.Worker, c.Nameless = "connection:"+randomHex(8), true
	}
}
