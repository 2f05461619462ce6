package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/fencing/fence"
)

// clockTolerance is how far clocks may differ without being noticed in logs and ages.
const clockTolerance = 2 * time.Second

var (
	standby = newKind(Error, "standby",
		"A standby accepts no grant, so nobody can lead.")
	fsyncOff = newKind(Error, "fsync-off",
		"A crash of the machine can lose a grant that was announced to workers. The epoch is then granted a second time, and the fence cannot distinguish the two leaders.")
	fullPageWritesOff = newKind(Error, "full-page-writes-off",
		"A crash of the machine can leave half-written pages, also of the fence.")
	commitOff = newKind(Warning, "synchronous-commit",
		"Grants reach the disk, and the synchronous standbys, whatever this setting is. The commits of workers do not: one that was reported, and that the next leader has read, can be lost in a crash or a failover.")
	asyncReplica = newKind(Warning, "asynchronous-replica",
		"A failover to a standby that lags can lose the newest grants. An epoch is then granted a second time. Fencepost notices only if a proxy still knows the lost epoch (ZF004).")
	clocksDiffer = newKind(Warning, "clock",
		"Leases and the fence do not depend on it: each clock is compared only with itself. But ages in fencepost status, the order of log lines, and the dates of certificates are wrong.")
	manyConnections = newKind(Warning, "max-connections",
		"If clients use all connections of Postgres, the control role gets none, and takeovers wait.")
)

// postgres looks at the settings of the server by which a grant, or a commit, can be lost.
// several says that the configuration names several hosts.
func (f *findings) postgres(p *Postgres, several bool) {
	if p.Standby {
		f.add(standby, "the server is a standby", "Let upstream.address name the primary, or all servers of which one is.")
	}
	if p.Settings["fsync"] == "off" {
		f.add(fsyncOff, "fsync is off", "Set fsync = on.")
	}
	if p.Settings["full_page_writes"] == "off" {
		f.add(fullPageWritesOff, "full_page_writes is off", "Set full_page_writes = on, unless the file system guarantees that no page is half-written.")
	}
	names := p.Settings["synchronous_standby_names"]
	f.commits(p, names)
	if (several || len(p.Replicas) > 0) && names == "" {
		why := "upstream.address has several hosts"
		if len(p.Replicas) > 0 {
			why = "there are replicas: " + strings.Join(p.Replicas, ", ")
		}
		f.addf(asyncReplica, "Set synchronous_standby_names, if you fail over without an operator. Otherwise, stop all workers before a failover, and run fencepost generation bump --database DATABASE --restored after it.",
			"synchronous_standby_names is empty, and %s", why)
	}
	if ahead := p.Clock.Ahead.Abs(); ahead-p.Clock.Doubt > clockTolerance {
		direction := "ahead of"
		if p.Clock.Ahead < 0 {
			direction = "behind"
		}
		f.addf(clocksDiffer, "Synchronize both clocks, for example with chrony.", "the clock of Postgres is %s %s this machine's", ahead.Round(time.Second/10), direction)
	}
}

// commits looks at synchronous_commit.
func (f *findings) commits(p *Postgres, standbys string) {
	do := "Set synchronous_commit = on for the roles that workers use."
	if value := p.Settings["synchronous_commit"]; weak(value, standbys) {
		f.addf(commitOff, do, "synchronous_commit is %s", value)
	}
	for _, o := range p.Overrides {
		if !weak(o.Value, standbys) {
			continue
		}
		whose := "all roles"
		if o.Role != "" {
			whose = "role " + o.Role
		}
		if o.Database != "" {
			whose += " in database " + o.Database
		}
		f.addf(commitOff, do, "synchronous_commit is %s for %s (ALTER ROLE or ALTER DATABASE)", o.Value, whose)
	}
}

// weak reports whether commits under a value of synchronous_commit can be lost. standbys is
// synchronous_standby_names.
func weak(value, standbys string) bool {
	switch strings.ToLower(value) {
	case "off", "false", "no", "0":
		return true
	case "local", "remote_write":
		return standbys != ""
	}
	return false
}

// connections compares the limit of clients with that of Postgres.
func (f *findings) connections(facts Facts) {
	if facts.Settings == nil {
		return
	}
	left, err := strconv.Atoi(facts.Postgres.Settings["max_connections"])
	if err != nil {
		return
	}
	for _, reserved := range []string{"superuser_reserved_connections", "reserved_connections"} {
		if n, err := strconv.Atoi(facts.Postgres.Settings[reserved]); err == nil { // the second is new in 16
			left -= n
		}
	}
	control := fence.Connections * max(1, len(facts.Databases))
	if most := facts.Settings.Limits.MaxConnections; most+control > left {
		f.add(manyConnections, fmt.Sprintf("limits.max_connections is %d, and Fencepost itself may need %d connections for %d databases, but Postgres has %d for all",
			most, control, max(1, len(facts.Databases)), left),
			fmt.Sprintf("Set limits.max_connections to at most %d for all proxies together, or raise max_connections of Postgres.", max(1, left-control)))
	}
}

var (
	workerSuper = newKind(Error, "worker-superuser",
		"Fencepost refuses a superuser as a worker (ZF004), because it could not end its transactions. A superuser can also change the fence.")
	fenceRights = newKind(Error, "fence-rights",
		"Such a role can change the fence itself, or end and replace what Fencepost has recorded. A change that makes an epoch valid again is not noticed.")
)

// roles looks at the rights of the roles that workers may use.
func (f *findings) roles(d Database, facts Facts) {
	named := namedUsers(facts.Settings)
	if by := d.Schema.Owner; slices.Contains(named, by) {
		f.addf(fenceRights, "Let the workers use another role: Fencepost refuses this one.", "the control role %s is named as one of workers (resources.<name>.users)", by)
	}
	if table := d.Schema.OwnerTable; table != "" {
		f.addf(fenceRights, "Let the application use a role of its own, and give it the tables: REASSIGN OWNED BY, as a superuser.", "the control role %s owns the table %s", d.Schema.Owner, table)
	}
	for _, r := range d.Roles {
		is := func(name string) bool { return name == r.Name || slices.Contains(r.Groups, name) }
		switch {
		case r.Super && slices.ContainsFunc(named, is):
			f.addf(workerSuper, fmt.Sprintf("ALTER ROLE %s NOSUPERUSER, or let the workers use another role.", r.Name), "the worker role %s is a superuser", r.Name)
		case !r.Super && r.Fence != "":
			f.addf(fenceRights, "REVOKE it. Nobody but the control role needs it.", "role %s has %s", r.Name, r.Fence)
		}
	}
}
