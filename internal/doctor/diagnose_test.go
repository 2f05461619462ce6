package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/upstream"
)

// sound are the facts of an installation in which nothing is wrong.
func sound() Facts {
	c := config.Default()
	c.Limits.MaxConnections = 50
	c.Resources = map[string]config.Resource{"billing": {}}
	return Facts{
		Settings: &c,
		Postgres: &Postgres{
			Settings: map[string]string{"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "synchronous_standby_names": "",
				"max_connections": "100", "superuser_reserved_connections": "3"},
			Overrides: []Override{{Role: "reports", Value: "on"}},
			Clock:     Clock{Ahead: time.Second, Doubt: time.Millisecond},
			Rules: []Rule{
				{Line: 1, Type: "local", Databases: []string{"all"}, Users: []string{"all"}, Method: "peer"},
				{Line: 2, Type: "host", Databases: []string{"all"}, Users: []string{"all"}, Address: "10.0.0.5", Mask: "255.255.255.255", Method: "scram-sha-256"},
			},
		},
		Databases: []Database{{
			Name: "shop", Schema: Schema{Version: 8, Needed: 7, Latest: 8, Owner: "fencepost"},
			Roles: []Role{{Name: "app", Writes: "public.invoices"}, {Name: "postgres", Super: true, Bootstrap: true}},
		}},
	}
}

func TestDiagnose(t *testing.T) {
	t.Parallel()
	duration := func(d time.Duration) *config.Duration { c := config.Duration(d); return &c }
	open := Rule{Line: 3, Type: "host", Databases: []string{"all"}, Users: []string{"all"}, Address: "all", Method: "scram-sha-256"}
	for name, c := range map[string]struct {
		change func(f *Facts)
		want   []string // ids, errors first
	}{
		"nothing wrong":                     {func(*Facts) {}, nil},
		"a guard in force":                  {func(f *Facts) { f.Databases[0].Guards = []Guard{{Table: "public.t", Resource: "billing"}} }, nil},
		"a guard that is not in force":      {func(f *Facts) { f.Databases[0].Guards = []Guard{{Broken: []string{"public.t_1"}}} }, []string{"guard-broken"}},
		"a guard that is lost":              {func(f *Facts) { f.Databases[0].Lost = []LostGuard{{"billing", "public.t"}} }, []string{"guard-lost"}},
		"a trigger behind a guard":          {func(f *Facts) { f.Databases[0].Guards = []Guard{{LaterTriggers: []string{"z on public.t"}}} }, []string{"guard-order"}},
		"a guard whose owner logs in":       {func(f *Facts) { f.Databases[0].Guards = []Guard{{Owners: []string{"app"}}} }, []string{"guard-owner"}},
		"a stamp above the fence":           {func(f *Facts) { f.Databases[0].Guards = []Guard{{Epoch: 3, Above: 4}} }, []string{"stamp-above-fence"}},
		"a guard and a subscription":        {func(f *Facts) { f.Databases[0].Guards = []Guard{{Subscriptions: []string{"s"}}} }, []string{"guard-subscription"}},
		"a publication of the fence":        {func(f *Facts) { f.Databases[0].Publications = []string{"p"} }, []string{"publication-fence"}},
		"a subscription of the fence":       {func(f *Facts) { f.Databases[0].Subscriptions = []Subscription{{"s", []string{"fencepost.fence"}}} }, []string{"subscription-fence"}},
		"a guard that does not fire always": {func(f *Facts) { f.Databases[0].Guards = []Guard{{NotAlways: []string{"public.t"}}} }, []string{"guard-not-always"}},
		"a guard and another superuser": {func(f *Facts) {
			f.Databases[0].Guards, f.Databases[0].Roles = []Guard{{}}, []Role{{Name: "boss", Super: true}}
		}, []string{"guard-superuser"}},
		"awards that are newer":         {func(f *Facts) { f.Databases[0].awarded(2, 8, Recorded{"billing", "etcd", 1, 9}) }, nil},
		"awards as new as the last one": {func(f *Facts) { f.Databases[0].awarded(2, 8, Recorded{"billing", "consul", 2, 8}) }, nil},
		"awards of a first generation":  {func(f *Facts) { f.Databases[0].awarded(0, 8, Recorded{"billing", "etcd", 1, 9}) }, nil},
		"awards of an older generation": {func(f *Facts) { f.Databases[0].awarded(1, 99, Recorded{"billing", "etcd", 2, 9}) }, []string{"awards-below-fence"}},
		"awards that have gone back":    {func(f *Facts) { f.Databases[0].awarded(2, 8, Recorded{"billing", "consul", 2, 9}) }, []string{"awards-below-fence"}},
		"awards of others of its kind":  {func(f *Facts) { f.Databases[0].awarded(1, 8, Recorded{"billing", "consul", 2, 9}) }, []string{"awards-below-fence"}},
		"awards, and tokens instead":    {func(f *Facts) { f.Databases[0].awarded(1, 8, Recorded{"billing", "token", 2, 9}) }, []string{"awards-below-fence"}},
		"tokens": {func(f *Facts) {
			f.Settings.Resources = map[string]config.Resource{"billing": {Election: "token"}}
			f.Databases[0].awarded(1, 8, Recorded{"billing", "token", 2, 9})
		}, nil},
		"names that are close": {func(f *Facts) { f.Databases[0].led("billing", "biling", "mail") }, []string{"resource-names"}},
		"names that are close, and both configured": {func(f *Facts) {
			f.Settings.Resources["biling"] = config.Resource{}
			f.Databases[0].led("billing", "biling")
		}, nil},
		"numbered names":                        {func(f *Facts) { f.Databases[0].led("shard-7", "shard-8", "billing-eu", "billing-us") }, nil},
		"names that are close, not known which": {func(f *Facts) { f.Settings = nil; f.Databases[0].led("billing", "biling") }, []string{"resource-names"}},
		"another superuser":                     {func(f *Facts) { f.Databases[0].Roles = []Role{{Name: "boss", Super: true}} }, nil},
		"a guard and a worker of pg_write_all_data": {func(f *Facts) {
			f.Databases[0].Guards, f.Databases[0].Roles = []Guard{{}}, []Role{{Name: "etl", Groups: []string{"pg_write_all_data"}}}
			f.Databases[0].Warnings = []string{"pg_write_all_data lets etl"}
		}, []string{"write-all-data"}},
		"a worker from two places":         {func(f *Facts) { f.Databases[0].Places = []Place{{"billing/w", []string{"a", "b"}}} }, []string{"worker-places"}},
		"nothing known":                    {func(f *Facts) { *f = Facts{} }, nil},
		"a short TTL":                      {func(f *Facts) { f.Settings.Lease.TTL = *duration(2999 * time.Millisecond); f.Settings.Lease.Grace = 0 }, []string{"ttl-short"}},
		"a short TTL of a resource":        {func(f *Facts) { f.Settings.Resources["billing"] = config.Resource{TTL: duration(2 * time.Second)} }, []string{"ttl-short"}},
		"a short TTL of all is said once":  {func(f *Facts) { f.Settings.Lease.TTL = *duration(2 * time.Second) }, []string{"ttl-short"}},
		"a grace as long as the TTL":       {func(f *Facts) { f.Settings.Lease.Grace = f.Settings.Lease.TTL }, nil},
		"a long grace":                     {func(f *Facts) { f.Settings.Lease.Grace = f.Settings.Lease.TTL + 1 }, []string{"grace-long"}},
		"a long linger":                    {func(f *Facts) { f.Settings.Lease.Linger = *duration(31 * time.Second) }, []string{"linger-long"}},
		"no worker timeout, with a linger": {func(f *Facts) { f.Settings.Lease.WorkerTimeout, f.Settings.Lease.Linger = 0, *duration(time.Second) }, []string{"worker-timeout-never"}},
		"no worker timeout":                {func(f *Facts) { f.Settings.Lease.WorkerTimeout = 0 }, []string{"worker-timeout-never"}},
		"a short worker timeout":           {func(f *Facts) { f.Settings.Lease.WorkerTimeout = *duration(4 * time.Second) }, []string{"worker-timeout-short"}},
		"users, and any timeout":           {func(f *Facts) { f.Settings.Resources["billing"] = config.Resource{Users: []string{"app"}} }, []string{"worker-timeout-unbounded"}},
		"users, and a limited timeout": {func(f *Facts) {
			f.Settings.Resources["billing"] = config.Resource{Users: []string{"app"}, MaxWorkerTimeout: duration(time.Minute)}
		}, nil},
		"no drain":                       {func(f *Facts) { f.Settings.DrainTimeout = 0 }, []string{"drain-none"}},
		"a long drain":                   {func(f *Facts) { f.Settings.DrainTimeout = *duration(30 * time.Second) }, []string{"drain-long"}},
		"unfenced writes":                {func(f *Facts) { f.Settings.Unfenced.Default = "allow" }, []string{"unfenced-allow"}},
		"unfenced writes of one user":    {func(f *Facts) { f.Settings.Unfenced.Users = map[string]string{"migrator": "allow"} }, nil},
		"a wrong password":               {func(f *Facts) { f.Login = &faults.Fault{Kind: faults.ControlLogin} }, []string{"control-login"}},
		"no Postgres":                    {func(f *Facts) { f.Login = &faults.Fault{Kind: faults.Upstream} }, []string{"upstream"}},
		"no lease service":               {func(f *Facts) { f.Leases = &faults.Fault{Kind: faults.LeaseService} }, []string{"lease-service"}},
		"a token without rights":         {func(f *Facts) { f.Leases = &faults.Fault{Kind: faults.LeaseDenied} }, []string{"lease-denied"}},
		"a service that saves nothing":   {func(f *Facts) { f.Risks = []elector.Risk{{Kind: elector.RiskNotSaved}} }, []string{"lease-not-saved"}},
		"a service without a spare":      {func(f *Facts) { f.Risks = []elector.Risk{{Kind: elector.RiskNotRedundant}} }, []string{"lease-not-redundant"}},
		"a service with replicas":        {func(f *Facts) { f.Risks = []elector.Risk{{Kind: elector.RiskNotReplicated}} }, []string{"lease-not-replicated"}},
		"a TTL that Consul refuses":      {func(f *Facts) { f.Leases = &faults.Fault{Kind: faults.LeaseTTL} }, []string{"lease-ttl"}},
		"no database with the schema":    {func(f *Facts) { f.Databases, f.NoFence = nil, []string{"shop"} }, []string{"schema"}},
		"no schema":                      {func(f *Facts) { f.Databases[0].Schema = Schema{Latest: 8} }, []string{"schema"}},
		"an old schema":                  {func(f *Facts) { f.Databases[0].Schema.Version = 6 }, []string{"schema"}},
		"an incomplete schema":           {func(f *Facts) { f.Databases[0].Schema.Incomplete = "lacks function x()" }, []string{"schema"}},
		"a schema without the newest":    {func(f *Facts) { f.Databases[0].Schema.Version = 7 }, []string{"schema-older"}},
		"a newer schema":                 {func(f *Facts) { f.Databases[0].Schema.Version = 9 }, []string{"schema-newer"}},
		"another control role":           {func(f *Facts) { f.Databases[0].Schema.Owner = "boss" }, []string{"control-privilege"}},
		"missing rights":                 {func(f *Facts) { f.Databases[0].Schema.Lacks = []string{"pg_signal_backend"} }, []string{"control-privilege"}},
		"pg_write_all_data":              {func(f *Facts) { f.Databases[0].Warnings = []string{"pg_write_all_data lets app"} }, []string{"write-all-data"}},
		"a warning of a later schema":    {func(f *Facts) { f.Databases[0].Warnings = []string{"beware"} }, []string{"schema-warning"}},
		"a prepared transaction":         {func(f *Facts) { f.Databases[0].Prepared = []Prepared{{"x", "app", "billing"}} }, []string{"prepared-transaction-holds-fence"}},
		"a standby":                      {func(f *Facts) { f.Postgres.Standby = true }, []string{"standby"}},
		"no fsync":                       {func(f *Facts) { f.Postgres.Settings["fsync"] = "off" }, []string{"fsync-off"}},
		"no full pages":                  {func(f *Facts) { f.Postgres.Settings["full_page_writes"] = "off" }, []string{"full-page-writes-off"}},
		"commits that do not wait":       {func(f *Facts) { f.Postgres.Settings["synchronous_commit"] = "off" }, []string{"synchronous-commit"}},
		"commits of a role":              {func(f *Facts) { f.Postgres.Overrides[0].Value = "No" }, []string{"synchronous-commit"}},
		"local commits without standbys": {func(f *Facts) { f.Postgres.Settings["synchronous_commit"] = "local" }, nil},
		"local commits with standbys": {func(f *Facts) {
			f.Postgres.Settings["synchronous_commit"], f.Postgres.Settings["synchronous_standby_names"] = "local", "*"
		}, []string{"synchronous-commit"}},
		"an asynchronous replica": {func(f *Facts) { f.Postgres.Replicas = []string{"b"} }, []string{"asynchronous-replica"}},
		"a synchronous replica": {func(f *Facts) {
			f.Postgres.Replicas, f.Postgres.Settings["synchronous_standby_names"] = []string{"b"}, "b"
		}, nil},
		"several hosts":                       {func(f *Facts) { f.Hosts = pairOf(f, "", upstream.Standby) }, []string{"asynchronous-replica"}},
		"several hosts and a synchronous one": {func(f *Facts) { f.Hosts = pairOf(f, "*", upstream.Standby) }, nil},
		"a host that is down":                 {func(f *Facts) { f.Hosts = pairOf(f, "*", upstream.Unreachable) }, []string{"upstream-host"}},
		"a host of other servers":             {func(f *Facts) { f.Hosts = pairOf(f, "*", upstream.OtherSystem) }, []string{"upstream-host"}},
		"one server twice":                    {func(f *Facts) { f.Hosts = pairOf(f, "*", upstream.SameServer) }, []string{"upstream-host"}},
		"a former primary":                    {func(f *Facts) { f.Hosts = pairOf(f, "*", upstream.FormerPrimary) }, []string{"two-primaries"}},
		"a second primary":                    {func(f *Facts) { f.Hosts = pairOf(f, "*", upstream.SecondPrimary) }, []string{"two-primaries"}},
		"a clock that is ahead":               {func(f *Facts) { f.Postgres.Clock = Clock{Ahead: 3 * time.Second, Doubt: time.Second / 2} }, []string{"clock"}},
		"a clock that is behind":              {func(f *Facts) { f.Postgres.Clock = Clock{Ahead: -3 * time.Second} }, []string{"clock"}},
		"a clock that was read slowly":        {func(f *Facts) { f.Postgres.Clock = Clock{Ahead: 3 * time.Second, Doubt: time.Second} }, nil},
		"too many clients":                    {func(f *Facts) { f.Settings.Limits.MaxConnections = 74 }, []string{"max-connections"}},
		"as many clients as fit":              {func(f *Facts) { f.Settings.Limits.MaxConnections = 73 }, nil},
		"reserved connections": {func(f *Facts) {
			f.Settings.Limits.MaxConnections, f.Postgres.Settings["reserved_connections"] = 73, "1"
		}, []string{"max-connections"}},
		"a superuser in a group of a resource": {func(f *Facts) {
			f.Settings.Resources["billing"], f.Databases[0].Roles[1].Groups = config.Resource{Users: []string{"workers"}, MaxWorkerTimeout: duration(time.Minute)}, []string{"workers"}
		}, []string{"worker-superuser"}},
		"a superuser as user of a resource": {func(f *Facts) {
			f.Settings.Resources["billing"] = config.Resource{Users: []string{"postgres"}, MaxWorkerTimeout: duration(time.Minute)}
		}, []string{"worker-superuser"}},
		"the control role as that of workers": {func(f *Facts) {
			f.Settings.Resources["billing"] = config.Resource{Users: []string{f.Databases[0].Schema.Owner}, MaxWorkerTimeout: duration(time.Minute)}
		}, []string{"fence-rights"}},
		"a table of the control role":        {func(f *Facts) { f.Databases[0].Schema.OwnerTable = "public.invoices" }, []string{"fence-rights"}},
		"rights on the schema":               {func(f *Facts) { f.Databases[0].Roles[0].Fence = "CREATE" }, []string{"fence-rights"}},
		"a way around":                       {func(f *Facts) { f.Postgres.Rules = append(f.Postgres.Rules, open) }, []string{"way-around"}},
		"a way around for nobody who writes": {func(f *Facts) { f.Postgres.Rules, f.Databases[0].Roles = []Rule{open}, []Role{{Name: "reader"}} }, nil},
		"an invalid line":                    {func(f *Facts) { f.Postgres.Rules[0].Error = "invalid" }, []string{"hba-invalid"}},
		"errors come first":                  {func(f *Facts) { f.Settings.DrainTimeout, f.Postgres.Settings["fsync"] = 0, "off" }, []string{"fsync-off", "drain-none"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := sound()
			c.change(&f)
			var got []string
			for _, found := range Diagnose(f) {
				got = append(got, found.ID)
				for what, text := range map[string]string{"where": found.Where, "why": found.Why} {
					if text == "" {
						t.Errorf("%s has no %s", found.ID, what)
					}
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("found %v, want %v", got, c.want)
			}
		})
	}
}

// pairOf returns a primary and another host, and sets synchronous_standby_names of the facts.
func pairOf(f *Facts, standbys string, other upstream.State) []upstream.HostStatus {
	f.Postgres.Settings["synchronous_standby_names"] = standbys
	return []upstream.HostStatus{{Address: "a:5432", State: upstream.IsPrimary}, {Address: "b:5432", State: other}}
}

// awarded sets what Consul has counted, and what the fence records.
func (d *Database) awarded(number, index int64, recorded ...Recorded) {
	d.Awards, d.Recorded = &Awards{Source: "consul", Number: number, Index: index}, recorded
}

// led sets the resources that were led.
func (d *Database) led(resources ...string) {
	for _, r := range resources {
		d.Recorded = append(d.Recorded, Recorded{Resource: r, Source: "postgres", Generation: 1, Index: 1})
	}
}

// TestManyResourcesAreOneFinding of each generation, with the highest award.
func TestManyResourcesAreOneFinding(t *testing.T) {
	t.Parallel()
	f := sound()
	f.Databases[0].awarded(2, 5, Recorded{"a", "consul", 2, 7}, Recorded{"b", "etcd", 3, 1}, Recorded{"c", "consul", 2, 9}, Recorded{"d", "consul", 2, 5},
		Recorded{"e", "consul", 2, 6}, Recorded{"f", "consul", 2, 6}, Recorded{"g", "consul", 2, 6}, Recorded{"h", "consul", 2, 6})
	found := Diagnose(f)
	if len(found) != 2 || !strings.Contains(found[0].Seen, "counted its awards to 5, but the fence records award 9") ||
		!strings.HasSuffix(found[0].Seen, ": resource a, c, e, f, g and 1 more") || !strings.HasSuffix(found[1].Seen, ": resource b") {
		t.Errorf("found %+v", found)
	}
}

// TestFindingsAreDocumented: docs/doctor.md has a row for each id, and for no other.
func TestFindingsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "doctor.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| `") && len(cells) > 2 {
			rows[strings.Trim(cells[0], "| `")+" "+cells[1]] = true
		}
	}
	for _, k := range kinds {
		row := k.id + " " + string(k.severity)
		if !rows[row] {
			t.Errorf("docs/doctor.md has no row for %s", row)
		}
		delete(rows, row)
	}
	for row := range rows {
		t.Errorf("docs/doctor.md has a row for %s, which is no finding", row)
	}
}
