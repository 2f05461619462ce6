package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/internal/faults"
)

// faultKinds are the findings that package health reports as faults, too.
var faultKinds = map[faults.Kind]*kind{
	faults.Upstream: newKind(Error, "upstream",
		"Fencepost cannot serve anybody, and no worker can write."),
	faults.ControlLogin: newKind(Error, "control-login",
		"Without its control role, Fencepost can grant no epoch, so no worker can lead."),
	faults.Privilege: newKind(Error, "control-privilege",
		"A takeover fails, or waits without end, if the control role cannot end and see the transactions of other roles."),
	faults.Schema: newKind(Error, "schema",
		"Without its schema, or with one of another version, Fencepost refuses every write in that database (ZF004)."),
	faults.LeaseService: newKind(Error, "lease-service",
		"Without the lease service nobody can become leader, and leaders stop when their lease ends."),
	faults.LeaseDenied: newKind(Error, "lease-denied",
		"Without these rights no worker can become leader."),
	faults.LeaseTTL: newKind(Error, "lease-ttl",
		"Every attempt to acquire a lease with this TTL fails, so nobody leads."),
}

// Diagnose returns what is wrong or risky, errors first.
func Diagnose(f Facts) []Finding {
	all := findings{where: "configuration"}
	if f.Settings != nil {
		all.settings(f.Settings)
	}
	all.hosts(f.Hosts)
	all.fault("Postgres", f.Login)
	all.fault("lease service", f.Leases)
	all.where = "lease service"
	all.leaseRisks(f.Risks)
	if len(f.NoFence) > 0 {
		all.fault("databases", &faults.Fault{Kind: faults.Schema,
			Problem: "no database that the control role may connect to has the schema fencepost: " + strings.Join(f.NoFence, ", "),
			Remedy:  "Run fencepost migrate --dsn DSN for each database that workers write through Fencepost."})
	}
	if f.Postgres != nil {
		all.where = "Postgres"
		all.postgres(f.Postgres, len(f.Hosts) > 1)
		all.connections(f)
	}
	for _, d := range f.Databases {
		all.where = "database " + d.Name
		all.schema(d, f)
		all.fence(d)
		all.awards(d, f.Settings)
		all.roles(d, f)
		all.places(d)
		all.names(d, f.Settings)
		all.guards(d)
		all.mighty(d)
		if f.Postgres != nil {
			all.ways(d, f.Postgres.Rules)
		}
	}
	slices.SortStableFunc(all.list, func(a, b Finding) int { return strings.Compare(string(a.Severity), string(b.Severity)) })
	return all.list
}

// fault adds a fault of another package, if there is one.
func (f *findings) fault(where string, fault *faults.Fault) {
	if fault == nil {
		return
	}
	k := faultKinds[fault.Kind]
	if k == nil { // no other kind comes from a login or from the lease service
		k = faultKinds[faults.Upstream]
	}
	f.where = where
	f.add(k, fault.Problem, fault.Remedy)
}

var (
	schemaOlder = newKind(Warning, "schema-older",
		"Fencepost works with that schema, but without what the missing upgrades are for.")
	schemaNewer = newKind(Warning, "schema-newer",
		"This binary was not tested with that schema.")
)

// schema looks at the version of the schema and at the rights of its owner.
func (f *findings) schema(d Database, facts Facts) {
	s := d.Schema
	missing := fmt.Sprintf("Run fencepost migrate --dsn DSN for database %s.", d.Name)
	switch {
	case s.Version == 0:
		f.add(faultKinds[faults.Schema], "the schema fencepost is missing", missing)
		return
	case s.Incomplete != "":
		f.addf(faultKinds[faults.Schema], s.Remedy, "the schema fencepost is at version %d, but %s", s.Version, s.Incomplete)
	case s.Version < s.Needed:
		f.addf(faultKinds[faults.Schema], missing, "the schema fencepost is at version %d, but version %d is needed", s.Version, s.Needed)
	case s.Version < s.Latest:
		f.addf(schemaOlder, missing, "the schema fencepost is at version %d, and this binary has version %d", s.Version, s.Latest)
	case s.Version > s.Latest:
		f.addf(schemaNewer, "Update Fencepost on this machine.", "the schema fencepost is at version %d, but this binary knows %d", s.Version, s.Latest)
	}
	if facts.Settings != nil && facts.Settings.Control.User != s.Owner {
		f.addf(faultKinds[faults.Privilege], "Set control.user to the owner, or drop the schema and migrate again with --control-role.",
			"the schema fencepost belongs to role %s, but control.user is %s", s.Owner, facts.Settings.Control.User)
	}
	for _, right := range s.Lacks {
		f.addf(faultKinds[faults.Privilege], fmt.Sprintf("Run as a superuser: GRANT %s TO %s", right, s.Owner),
			"the control role %s is not a member of %s", s.Owner, right)
	}
}

var (
	writeAllData = newKind(Error, "write-all-data",
		"Such a role can change the fence itself. A change that makes an epoch valid again is not noticed.")
	otherWarning = newKind(Warning, "schema-warning",
		"The schema itself reports it; fencepost migrate prints the same.")
	preparedHolds = newKind(Error, "prepared-transaction-holds-fence",
		"Nobody else can be granted an epoch of that resource until the transaction is ended.")
	publicationFence = newKind(Warning, "publication-fence",
		"Fencepost's tables are of use in this database only. Each of their changes is sent, and a subscriber that lacks them stops.")
	subscriptionFence = newKind(Error, "subscription-fence",
		"A row of another database's fence can make an epoch valid again that has ended here, and where a key is taken, replication stops.")
)

// warningKinds are the kinds of the warnings of the schema, by how their text begins.
var warningKinds = []struct {
	begins string
	kind   *kind
	do     string
}{
	{"pg_write_all_data", writeAllData, "REVOKE pg_write_all_data from these roles, and grant the tables that they need."},
}

// fence looks at what others can do to the fences.
func (f *findings) fence(d Database) {
	for _, w := range d.Warnings {
		if strings.HasPrefix(w, "membership in the control role") { // which is said of each role
			continue
		}
		k, do := otherWarning, "Do what the warning says."
		for _, known := range warningKinds {
			if strings.HasPrefix(w, known.begins) {
				k, do = known.kind, known.do
			}
		}
		f.add(k, w, do)
	}
	for _, p := range d.Prepared {
		f.addf(preparedHolds, fmt.Sprintf("COMMIT PREPARED or ROLLBACK PREPARED it, in database %s as %s or a superuser.", d.Name, p.Owner),
			"the prepared transaction %q of role %s has locked the fence of resource %s", p.ID, p.Owner, p.Resource)
	}
	if len(d.Publications) > 0 {
		f.addf(publicationFence, "Publish the schemas or tables of the application instead: FOR TABLES IN SCHEMA public.",
			"publications contain tables of the schema fencepost: %s", strings.Join(d.Publications, ", "))
	}
	for _, s := range d.Subscriptions {
		f.addf(subscriptionFence, fmt.Sprintf("Run fencepost migrate --dsn DSN for database %s, which makes the triggers that keep subscriptions out. Then run fencepost generation bump --database %s --restored.", d.Name, d.Name),
			"subscription %s can write %s", s.Name, strings.Join(s.Tables, ", "))
	}
}
