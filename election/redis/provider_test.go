package redis_test

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/redis"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/redistest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

func TestMain(m *testing.M) {
	process.RaiseParallel()
	pgtest.Main(m, redistest.StopShared)
}

// ttl is the TTL of the leases in these tests.
var ttl = stopwatch.TTL(3 * time.Second)

func TestConformance(t *testing.T) {
	t.Parallel()
	electiontest.Run(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		return service(t, redistest.Shared(t), db)
	})
}

func TestRestores(t *testing.T) {
	t.Parallel()
	electiontest.RunRestores(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		return service(t, redistest.Start(t), db)
	})
}

// service is a server with a prefix that is unique to the test.
func service(t *testing.T, server *redistest.Server, db string) *electiontest.Service {
	as := operator{t, server, db}
	return &electiontest.Service{
		TTL: ttl, Death: ttl + 2*time.Second, Addr: server.Addr(), Adopts: true,
		Provider: func(t *testing.T, proxy string, link *electiontest.Link) elector.Provider {
			return client(t, redis.Config{Address: link.Addr(), Prefix: db, Proxy: proxy}).Database(db)
		},
		// A release writes another state.
		Request: func(worker string) string { return `{"state":"held","worker":"` + worker + `"` },
		Bump:    func(*testing.T) { as.do("HSET", db+"/.generation", "marker", rand.Text()) },
		Wipe:    func(*testing.T) { as.wipe() },
		Backup: func(t *testing.T) func(t *testing.T) {
			backup := server.Backup(t)
			return func(t *testing.T) { server.Restore(t, backup) }
		},
		Faults: []electiontest.Fault{
			{Name: "the record is deleted", Do: func(_ *testing.T, resource string) { as.do("HDEL", as.leases(), as.name(resource)) }},
			{Name: "the record is overwritten", Do: func(_ *testing.T, resource string) { as.do("HSET", as.leases(), as.name(resource), "mine") }},
			{Name: "all records are deleted", Do: func(*testing.T, string) { as.do("DEL", as.leases()) }},
			{Name: "all records are overwritten", Do: func(*testing.T, string) { as.do("SET", as.leases(), "mine") }},
			{Name: "the life is deleted", Do: func(_ *testing.T, resource string) { as.do("DEL", as.life(resource)) }},
			{Name: "the life is overwritten", Do: func(_ *testing.T, resource string) { as.do("SET", as.life(resource), "mine") }},
			{Name: "the life is made one without end", Do: func(_ *testing.T, resource string) { as.do("PERSIST", as.life(resource)) }},
			{Name: "the life becomes a list", Do: func(_ *testing.T, resource string) {
				as.do("DEL", as.life(resource))
				as.do("RPUSH", as.life(resource), "mine")
			}},
		},
	}
}

// operator does what redis-cli does with the keys of a prefix.
type operator struct {
	t      *testing.T
	server *redistest.Server
	prefix string // and the name of the database
}

func (o operator) do(command ...any) any       { o.t.Helper(); return o.server.Do(o.t, command...) }
func (o operator) leases() string              { return o.prefix + "/.leases" }
func (o operator) name(resource string) string { return o.prefix + "/" + resource }

// life returns the key of the life that a lease was awarded with.
func (o operator) life(resource string) string {
	o.t.Helper()
	text, _ := o.do("HGET", o.leases(), o.name(resource)).(string)
	words := strings.Fields(text)
	if len(words) < 2 {
		o.t.Fatalf("the lease is %q", text)
	}
	return o.prefix + "/.life/" + words[1]
}

// wipe deletes everything below the prefix.
func (o operator) wipe() {
	o.t.Helper()
	o.do("EVAL", "for _, key in ipairs(redis.call('keys', ARGV[1])) do redis.call('del', key) end", 0, o.prefix+"/*")
}

func client(t *testing.T, cfg redis.Config) *redis.Client {
	t.Helper()
	c, err := open(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// open returns a client that is closed when the test ends.
func open(t *testing.T, cfg redis.Config) (*redis.Client, error) {
	cfg.Logger = zaptest.NewLogger(t).Named(strings.TrimPrefix(cfg.Proxy, cfg.Prefix))
	c, err := redis.New(cfg)
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// What these tests share with those of other providers.
var (
	within     = electiontest.Within
	eventually = electiontest.Eventually
	bid        = electiontest.Bid
	acquire    = electiontest.Acquire
	renew      = electiontest.Renew
	isDenied   = electiontest.IsDenied
)

const (
	patience = electiontest.Patience
	long     = time.Minute // the TTL of leases that do not expire in a test
)
