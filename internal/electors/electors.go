// Package electors opens the lease services. It has one file for each kind of service; nothing
// else in the program knows which kinds there are.
package electors

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/internal/config"
)

// answerTimeout bounds a request that a command sends to a lease service.
const answerTimeout = 10 * time.Second

// All returns all kinds. A new one is an entry here and a file of its own; if it has settings,
// they are a field of config.Election.
func All() Kinds {
	return Kinds{Postgres, consulElector, etcdElector, kubernetesElector, raftElector, redisElector, zookeeperElector}
}

// Kinds are kinds of lease services.
type Kinds []Elector

// Providers returns what a configuration may name.
func (k Kinds) Providers() []config.Provider {
	all := make([]config.Provider, len(k))
	for i, e := range k {
		all[i] = e.Provider
	}
	return all
}

// Of returns the elector that a configuration names. ok is false if there is none of that name.
func (k Kinds) Of(cfg config.Config) (e Elector, ok bool) {
	i := slices.IndexFunc(k, func(e Elector) bool { return e.Name == cfg.Election.Provider })
	if i < 0 {
		return Elector{}, false
	}
	return k[i], true
}

// Open opens the configured lease service for a command.
func (k Kinds) Open(cfg config.Config, proxy string, log *zap.Logger) (Service, error) {
	e, ok := k.Of(cfg)
	if !ok {
		return nil, fmt.Errorf("election.provider is %q, which is unknown", cfg.Election.Provider)
	}
	return e.Open(cfg, proxy, log.Named(e.Name))
}

// Serve opens it for a proxy that serves.
func (k Kinds) Serve(cfg config.Config, proxy string, log *zap.Logger) (Service, error) {
	if e, ok := k.Of(cfg); ok && e.Serve != nil {
		return e.Serve(cfg, proxy, log.Named(e.Name))
	}
	return k.Open(cfg, proxy, log)
}

// Elector is one kind of lease service.
type Elector struct {
	config.Provider
	// Open returns the lease service for the named proxy. It does not wait until the
	// service is reachable.
	Open func(cfg config.Config, proxy string, log *zap.Logger) (Service, error)
	// Serve is Open for a proxy that serves, if that is something else: it may be a part of the
	// service itself.
	Serve func(cfg config.Config, proxy string, log *zap.Logger) (Service, error)
	// PerDatabase: the service has one generation per database, and not one for all.
	PerDatabase bool
}

// Service is the configured lease service of a running command.
type Service interface {
	// Database returns the provider of one database's leases. db is its fences.
	Database(name string, db *fence.Database) (elector.Provider, error)
	// Healthy returns why the service cannot be used at the moment, or nil if it can or
	// if its problems show elsewhere.
	Healthy() error
	// Check tries what an election needs of the service, with these TTLs. It returns an
	// *elector.DeniedError if the service denies it, and nil if the service needs no such
	// test.
	Check(ctx context.Context, ttls []time.Duration) error
	// Position does what Check does, and says how far the service has counted its awards. conn
	// is connected to the database concerned.
	Position(ctx context.Context, conn *pgx.Conn, ttls []time.Duration) (elector.Position, error)
	// BumpGeneration starts a new generation, and says what it did. db is the fences of
	// the named database; it is nil, and the name empty, if no database was given, which
	// an elector that is PerDatabase is never asked for.
	BumpGeneration(ctx context.Context, name string, db *fence.Database) (done string, err error)
	// Close is called when no provider is in use any more. It releases no lease.
	Close() error
}

// Adviser is a Service that knows what can cost leaders their leases although it works.
type Adviser interface {
	Risks(ctx context.Context) ([]elector.Risk, error)
}

// client is one proxy's connection to a service that keeps the leases of all databases.
type client interface {
	Healthy() error
	Check(ctx context.Context, ttls []time.Duration) error
	Position(ctx context.Context, ttls []time.Duration) (elector.Position, error)
	BumpGeneration(ctx context.Context) (instanceID string, err error)
	Close() error
}

// network is a service that is one for all databases.
type network struct {
	client
	database func(name string) elector.Provider
	name     string // as in the configuration
	title    string // as in a sentence
	setting  string // says where it is
	prefix   string // of its keys
}

func (n network) Database(name string, _ *fence.Database) (elector.Provider, error) {
	return n.database(name), nil
}

func (n network) Position(ctx context.Context, _ *pgx.Conn, ttls []time.Duration) (elector.Position, error) {
	return n.client.Position(ctx, ttls)
}

func (n network) BumpGeneration(ctx context.Context, _ string, _ *fence.Database) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	instanceID, err := n.client.BumpGeneration(ctx)
	var denied *elector.DeniedError
	if errors.As(err, &denied) {
		return "", fmt.Errorf("%w. %s Then run this again", err, denied.Remedy)
	}
	if remedy := elector.RemedyOf(err, ""); remedy != "" {
		return "", fmt.Errorf("%w. %s Then run this again", err, remedy)
	}
	var unreachable net.Error // a deadline is one too
	if errors.As(err, &unreachable) {
		return "", fmt.Errorf("%w. Make sure that %s runs, that it has a leader, and that %s is right, with its settings for TLS; "+
			"then run this again, which is harmless also if %s still carries out this request", err, n.title, n.setting, n.title)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: started a new generation under %s/, %s", n.name, n.prefix, instanceID), nil
}
