// Package hosts connects the program to Postgres as its configuration says: to the hosts of
// upstream.address, and to the primary among them as the control role.
package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/migrations"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/upstream"
)

// home is the database in which the control role logs in if none is configured.
const home = "postgres"

// Home returns the database in which the control role logs in while no other is in use.
func Home(cfg *config.Config) string {
	if cfg.Control.ProbeDatabase != "" {
		return cfg.Control.ProbeDatabase
	}
	return home
}

// New returns the hosts of the configuration. Their Run must be called if there are several.
func New(cfg config.Config, log *zap.Logger) (*upstream.Servers, error) {
	return withFirst(cfg, "", log)
}

// withFirst is New with the host that comes first, whatever the configuration says; "" for none. If
// several hosts accept writes on one timeline, the first of them is taken for the primary.
func withFirst(cfg config.Config, first string, log *zap.Logger) (*upstream.Servers, error) {
	side, err := newTLS(cfg, log)
	if err != nil {
		return nil, err
	}
	addresses := cfg.Upstream.Endpoints()
	all := make([]upstream.Host, len(addresses))
	for i, address := range addresses {
		all[i] = upstream.Host{Address: address, TLS: named(side, cfg, address)}
	}
	if len(all) == 1 {
		return upstream.One(all[0])
	}
	if i := slices.Index(addresses, first); i > 0 {
		all = slices.Concat(all[i:i+1], all[:i], all[i+1:])
	}
	return upstream.Several(upstream.Config{Hosts: all, Logger: log.Named("upstream"), Probe: func(h upstream.Host) upstream.Probe {
		return probe{store.NewStateReader(store.Config{Address: h.Address, TLS: h.TLS.Config(), Database: Home(&cfg),
			User: cfg.Control.User, Password: cfg.Control.Password})}
	}})
}

// Look returns the hosts of the configuration after one look at each, for a command that does
// its work and ends.
func Look(ctx context.Context, cfg config.Config) (*upstream.Servers, error) {
	return look(ctx, cfg, "")
}

// look is Look with the host that comes first.
func look(ctx context.Context, cfg config.Config, first string) (*upstream.Servers, error) {
	servers, err := withFirst(cfg, first, zap.NewNop())
	if err == nil {
		servers.Look(ctx)
	}
	return servers, err
}

// named returns the TLS side for the server at an address: each is expected to have a
// certificate of its own name, unless one is configured for all.
func named(side *pgtls.Upstream, cfg config.Config, address string) *pgtls.Upstream {
	host, _, err := net.SplitHostPort(address)
	if err != nil || cfg.Upstream.TLS.ServerName != "" { // a Unix socket has no side
		return side
	}
	return side.Named(host)
}

var verifies = map[string]pgtls.Verify{
	"require":     pgtls.VerifyNothing,
	"verify-ca":   pgtls.VerifyCA,
	"verify-full": pgtls.VerifyFull,
}

// newTLS builds the TLS configuration for Postgres; nil if disabled.
func newTLS(cfg config.Config, log *zap.Logger) (*pgtls.Upstream, error) {
	c := cfg.Upstream.TLS
	if !c.Enabled() {
		return nil, nil
	}
	name := c.ServerName
	if name == "" {
		host, _, err := net.SplitHostPort(cfg.Upstream.Endpoints()[0])
		if err != nil {
			return nil, fmt.Errorf("read upstream.address: %w", err)
		}
		name = host
	}
	side, err := pgtls.NewUpstream(pgtls.UpstreamConfig{
		Verify: verifies[c.Mode], CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile,
		ServerName: name, MinVersion: config.TLSVersions[c.MinVersion], Logger: log.Named("tls"),
	})
	if err != nil {
		return nil, fmt.Errorf("settings upstream.tls: %w", err)
	}
	return side, nil
}

// probe looks at one host as the control role.
type probe struct{ *store.StateReader }

// Look implements upstream.Probe.
func (p probe) Look(ctx context.Context) upstream.Finding {
	st, err := p.Read(ctx)
	var refused *fencing.Refusal
	return upstream.Finding{
		Err: err, Refused: errors.As(err, &refused) || store.Gone(err),
		Standby: st.Standby, ReadOnly: st.ReadOnly, System: st.System, Timeline: st.Timeline, Server: st.Server, Standbys: st.Standbys,
	}
}

// Store says how to connect to a database of the primary as the control role.
func Store(cfg config.Config, servers *upstream.Servers, database string) store.Config {
	return store.Config{
		Address: strings.Join(servers.Addresses(), ","),
		Primary: func(ctx context.Context) (store.Server, error) {
			p, err := servers.Primary(ctx)
			return server(p), err
		},
		Database:      database,
		User:          cfg.Control.User,
		Password:      cfg.Control.Password,
		SchemaVersion: migrations.Needed,
		Complete:      migrations.Examine,
	}
}

// open says how to open the fences of a database.
func open(cfg config.Config, servers *upstream.Servers, database string, log *zap.Logger) fence.Config {
	return fence.Config{Config: Store(cfg, servers, database), Grace: cfg.Lease.Grace.D(), Logger: log}
}

// server is the primary as a store knows it.
func server(p upstream.Primary) store.Server {
	return store.Server{Address: p.Address, TLS: p.TLS.Config(), Tenure: p.Tenure, Standby: p.LedToStandby}
}

// Open opens the fence of one database as the control role. change, if not nil, changes how.
func Open(ctx context.Context, cfg config.Config, servers *upstream.Servers, database string, log *zap.Logger,
	change func(*fence.Config)) (*fence.Database, error) {
	c := open(cfg, servers, database, log.Named("store"))
	if change != nil {
		change(&c)
	}
	return fence.Open(ctx, c)
}

// Try connects to the primary, up to TLS if that is configured, as workers' connections do,
// and waits until a server process answers.
func Try(ctx context.Context, servers *upstream.Servers) error {
	primary, err := servers.Primary(ctx)
	if err != nil {
		return err
	}
	deadline := time.Now().Add(time.Second)
	dialer := net.Dialer{Deadline: deadline}
	conn, err := dialer.DialContext(ctx, primary.Network(), primary.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(deadline)
	return primary.TLS.Try(conn)
}
