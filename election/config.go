package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/boottime"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

// Defaults of Settings.
const (
	DefaultTTL           = 10 * time.Second
	DefaultWorkerTimeout = 30 * time.Second
	DefaultLinger        = 0 * time.Second
	// DefaultMaxTimeoutFactor is the default of Settings.MaxTimeoutFactor.
	DefaultMaxTimeoutFactor = 4
)

// Config is the configuration of an Elections.
type Config struct {
	// Open opens a database. It is called once per database, and again after an error.
	// The context ends with Close or after a timeout.
	Open func(ctx context.Context, database string) (Backend, error)
	// Settings returns the settings of a resource. They may change: a candidacy keeps those
	// with which it began. It must not block. nil means the defaults.
	Settings func(database, resource string) Settings
	// Idle is how long a resource without a candidacy is kept. 0 means DefaultIdle.
	Idle time.Duration
	// ResourcesPerUser limits how many resources one role may use at once, in all
	// databases. Those whose Settings are Configured do not count. 0 means no limit, and so
	// does nil. The limit may change; a role that is above it keeps what it uses.
	ResourcesPerUser func() int
	// Observe, if not nil, is called with every event. It must not block.
	Observe func(Event)
	Logger  *zap.Logger
	// Now reads CLOCK_BOOTTIME. nil means boottime.Now.
	Now func() time.Duration
	// Falsify, if not nil, replaces the decision whether a worker is unresponsive, at each
	// sample of its activity. Only tests set it, to show that no safety depends on that
	// decision. It must not block.
	Falsify func(worker string) (unresponsive bool)
}

// Settings are the election settings of one resource.
type Settings struct {
	// TTL is how long a lease lasts unless it is renewed. It is renewed after a third
	// of that.
	TTL time.Duration
	// WorkerTimeout is how long a worker may show no activity. 0 means unlimited.
	WorkerTimeout time.Duration
	// MaxWorkerTimeout limits WorkerTimeout, the timeout that a client may request, and
	// their extension by false alarms. 0 means no limit.
	MaxWorkerTimeout time.Duration
	// MaxTimeoutFactor limits the timeout that false alarms have extended to this
	// multiple of the requested one; 1 means that they do not extend it. 0 means the
	// default.
	MaxTimeoutFactor int
	// Users are the roles that may campaign. nil means all roles.
	Users []string
	// Configured means that the operator named the resource, and not only a client. It
	// does not count for Config.ResourcesPerUser.
	Configured bool
	// Linger is how long the lease is kept after a worker's last connection was closed
	// in an orderly way.
	Linger time.Duration
	// Tokens means that workers are elected elsewhere and bring a token. It counts when a
	// resource is first used, or again after it was forgotten.
	Tokens bool
	// MaxJump is by how much a token may exceed the recorded one. 0 means no limit.
	MaxJump int64
}

// DefaultSettings returns the settings of a resource that has none of its own.
func DefaultSettings() Settings {
	return Settings{TTL: DefaultTTL, WorkerTimeout: DefaultWorkerTimeout, Linger: DefaultLinger}
}

// Validate returns an error that says what to change.
func (s Settings) Validate() error {
	switch {
	case s.TTL < 100*time.Millisecond:
		return fmt.Errorf("lease ttl %v is too short: use at least 100ms (with Consul at least 10s, unless session_ttl_min allows less; with etcd 2s, with ZooKeeper two ticks)", s.TTL)
	case s.WorkerTimeout < 0:
		return fmt.Errorf("worker timeout %v is negative: use 0 for no timeout", s.WorkerTimeout)
	case s.MaxWorkerTimeout < 0:
		return fmt.Errorf("maximum worker timeout %v is negative: use 0 for no limit", s.MaxWorkerTimeout)
	case s.MaxTimeoutFactor < 0:
		return fmt.Errorf("maximum worker timeout factor %d is negative: use 1 or more", s.MaxTimeoutFactor)
	case s.MaxWorkerTimeout > 0 && (s.WorkerTimeout == 0 || s.WorkerTimeout > s.MaxWorkerTimeout):
		return fmt.Errorf("worker timeout %v is longer than the maximum of %v", s.WorkerTimeout, s.MaxWorkerTimeout)
	case s.Linger < 0:
		return fmt.Errorf("linger %v is negative: use 0 or more", s.Linger)
	}
	return nil
}

// trust returns how long a lease is trusted after a request confirmed it, counted from
// just before that request was sent. The worker stops a tenth of the TTL before the lease may end.
func (s Settings) trust() time.Duration { return s.TTL - s.TTL/10 }

// callTimeout bounds one request to the lease service, so that a request that hangs
// leaves time for two more before the deadline.
func (s Settings) callTimeout() time.Duration { return min(2*time.Second, s.TTL/3) }

func (c Config) withDefaults() (Config, error) {
	if c.Open == nil {
		return c, errors.New("election: Config.Open is nil")
	}
	if c.Settings == nil {
		c.Settings = func(string, string) Settings { return DefaultSettings() }
	}
	if c.ResourcesPerUser == nil {
		c.ResourcesPerUser = func() int { return 0 }
	}
	if c.Observe == nil {
		c.Observe = func(Event) {}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Idle == 0 {
		c.Idle = DefaultIdle
	}
	if c.Now == nil {
		c.Now = boottime.Now
	}
	return c, nil
}

// Fence is what a candidacy needs of one resource's row in the fence table, in addition
// to what the proxy needs. Its errors are *fencing.Refusal if the fence itself refused:
// ZF001 (another candidacy has been granted an epoch), ZF004 (schema missing, missing
// privilege, database restored), ZF006 (the award is not newer than the recorded one:
// release it), ZF007 (the lease service instance has no number: number it and ask for
// another award). A grant that an operator's order forbids is a *fencing.Barred. After any
// other error the outcome is unknown.
type Fence interface {
	fencing.Fence
	// Database returns the identity of the fence's database. If the database has another
	// one now, Record, Verify and Grant return fencing.ErrReplaced. They return
	// fencing.ErrRemoved if an operator has removed the resource.
	Database() string
	// CheckRole returns a *fencing.Refusal if the backend belongs to a role that must not write as a
	// worker: a superuser, unless the control role is one, because the control role could not
	// end the backend, which could block every grant; or a member of the schema's owner. user is
	// the role as which its client has logged in. What was true a second ago counts.
	CheckRole(ctx context.Context, user string, backend uint32) error
	// Number numbers an instance of a lease service unless it has a number already. A
	// candidacy must not ask for a lease under an instance before that.
	Number(ctx context.Context, source, instanceID string) error
	// Grant turns an award into an epoch. The same award again returns the same epoch;
	// a newer award of the recorded incarnation keeps the epoch.
	Grant(ctx context.Context, a fencing.Award) (fencing.Epoch, error)
	// BlockedBy returns what the last grant waits for, or was given up for, and cannot end.
	BlockedBy() []string
	// AwaitUnblocked follows a grant that failed because something blocked it (its error has a method
	// BlockedBy). It returns nil when that has ended; BlockedBy then returns nothing, and until then what is
	// left of it. It returns an error when ctx has ended.
	AwaitUnblocked(ctx context.Context) error
	// Record returns the highest grant.
	Record(ctx context.Context) (fencing.Record, error)
	// SupersededBefore reports whether the worker led under an epoch, which it may have shared
	// with others, and another worker has led under a higher one since. What the candidacy of
	// the incarnation except was granted does not count.
	SupersededBefore(ctx context.Context, worker, except string) (bool, error)
	// Verify compares what the proxy believes with the database. It returns a
	// *fencing.Refusal if they differ. Without an epoch only the databases are compared.
	Verify(ctx context.Context, t fencing.Term) error
}

// Backend is what Elections needs for one database.
type Backend struct {
	// Fence returns the fence of a resource, and creates it if there is none.
	Fence func(ctx context.Context, resource string) (Fence, error)
	// Catalog is the database's catalog. If it is nil, no read is proven.
	Catalog fencing.CatalogReader
	// Provider awards the leases of this database's resources. Elections
	// closes it.
	Provider elector.Provider
	// Tokens is for the resources whose Settings.Tokens is set. Elections closes it.
	Tokens elector.TokenProvider
	// Orders, if not nil, reads what operators have ordered in this database, and which resources guard
	// tables. Without it, a candidacy learns of its first guard when that refuses it.
	Orders Orders
	// Answers, if not nil, is asked when Orders has failed with this error: it reports whether the server answers,
	// whatever it says. If it has not for a TTL and 15 s, candidacies give their leases back. Without it, they keep
	// them.
	Answers func(ctx context.Context, failed error) bool
	// Fences, if not nil, is asked every few seconds. Without it, a fence that was recreated is
	// noticed when a worker connects.
	Fences func(ctx context.Context) (fencing.Fences, error)
	// InForce, if not nil, is asked as often as Orders while there are bars, and less often while the
	// database has no candidacy.
	InForce InForce
	// Handovers, if not nil, is asked after each order, and records who campaigns.
	Handovers Handovers
	// FollowDrains, if not nil, calls notify for each grant of any proxy that waits for registered backends. It returns
	// when ctx has ended or the connection is lost.
	FollowDrains func(ctx context.Context, notify func(fencing.Drain)) error
	// Presence, if not nil, lets a worker take its own lease away from a proxy that is gone.
	Presence Presence
	// CloseIdle, if not nil, is called when the database has had no candidacy for a
	// while, to close its connections. The backend may be used again afterwards.
	CloseIdle func()
	// Close, if not nil, is called after the Provider has been closed.
	Close func()
}

// Presence is what a database knows of the proxies that are connected to it.
type Presence interface {
	// PresenceID identifies this proxy to the others, since it has opened the database. It contains
	// no dot.
	PresenceID() string
	// Gone reports whether a proxy, which was connected to the database, has no connection to it
	// any more, and no other one has taken over the candidacy of this incarnation and is connected. A
	// proxy that was killed has none at once, because the kernel of its machine closes
	// them. One whose machine has vanished, or that is frozen, still has them.
	Gone(ctx context.Context, presenceID, incarnation string) (bool, error)
}
