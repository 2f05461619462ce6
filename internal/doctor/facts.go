package doctor

import (
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/upstream"
)

// Facts are what Look has gathered.
type Facts struct {
	Settings  *config.Config        // nil: not looked at
	Login     *faults.Fault         // why the control role cannot log in; nil if it can, or was not tried
	Hosts     []upstream.HostStatus // of upstream.address if it has several
	Postgres  *Postgres             // of the primary; nil: not looked at
	Databases []Database
	// NoFence are the databases in which no schema was found, if there was none anywhere.
	NoFence []string
	Leases  *faults.Fault // what is wrong with the lease service; nil: nothing, or not tried
	Risks   []elector.Risk

	// Notes say what could not be known. They are no findings.
	Notes []string
	// Failures say what should have been looked at and could not be.
	Failures []string
}

// Postgres is what is known of the server.
type Postgres struct {
	Standby bool
	// Settings are values of pg_settings by name, as the connection sees them.
	Settings map[string]string
	// Overrides are the settings of synchronous_commit for roles and databases.
	Overrides []Override
	Replicas  []string // names of the physical standbys that are connected
	Clock     Clock
	// Rules are the lines of pg_hba.conf in order; nil if they could not be read.
	Rules []Rule
}

// Override is a setting of pg_db_role_setting. An empty Role or Database means all.
type Override struct{ Database, Role, Value string }

// Clock is the difference between two clocks.
type Clock struct {
	Ahead time.Duration // by how much Postgres's clock is ahead of this machine's
	Doubt time.Duration // how far off Ahead may be
}

// Rule is a line of pg_hba.conf, as pg_hba_file_rules shows it.
type Rule struct {
	Line             int
	Type             string // "local", "host", "hostssl", ...
	Databases, Users []string
	Address, Mask    string
	Method           string
	Options          []string
	Error            string // why the line is invalid
}

// Database is what is known of one database.
type Database struct {
	Name   string
	Schema Schema
	Roles  []Role // that may log in, without the owner of the schema
	// Warnings are those of migrations.Warnings.
	Warnings []string
	Prepared []Prepared
	// Places are the workers that are connected from several addresses.
	Places []Place
	Guards []Guard
	// Recorded are the awards of the resources, without those that were never awarded one.
	Recorded []Recorded
	Awards   *Awards // nil: not looked at
	// Lost are the tables that are recorded as guarded, and are not.
	Lost []LostGuard
	// Publications are those that contain tables of the schema, and Subscriptions those that write such tables.
	Publications  []string
	Subscriptions []Subscription
}

// Subscription is a subscription that can write tables of the schema.
type Subscription struct {
	Name   string
	Tables []string
}

// LostGuard is a table that is recorded as guarded by a resource, and has no guard.
type LostGuard struct{ Resource, Table string }

// Schema is the schema fencepost of a database.
type Schema struct {
	Version int // 0 if it is missing
	Needed  int // by this binary
	Latest  int // that this binary has
	Owner   string
	// Lacks are the roles that the owner should be a member of and is not.
	Lacks []string
	// OwnerTable is a table of the application that the owner owns, too; "" if there is none.
	OwnerTable string
	// Incomplete says what is missing at this version, and Remedy what to do then. If it is not "", the rest of
	// the database was not looked at.
	Incomplete, Remedy string
}

// Role is a role that may log in and connect to a database.
type Role struct {
	Name  string
	Super bool
	// Bootstrap is the superuser that initdb has made, which no one can demote.
	Bootstrap bool
	Groups    []string // all that it is a member of, also indirectly
	Writes    string   // a table of the application that it may write; "" if there is none
	// Fence says which right to change the fence it has beyond that of a superuser and of
	// pg_write_all_data; "" if none.
	Fence string
}

// Guard is a guarded table with its partitions and children.
type Guard struct {
	Table, Resource string
	Broken          []string // those of which a trigger is missing or disabled
	// NotAlways are those whose triggers do not fire with session_replication_role = replica,
	// and Setters the roles that may log in and set that, without superusers.
	NotAlways, Setters []string
	// Owners are the roles that may log in and act as the owner of one of the tables, without
	// superusers and the control role.
	Owners        []string
	Subscriptions []string // logical replication that writes them
	Stamp         string   // the column that takes the epoch, "" for none
	Epoch         int64    // of the resource
	// LaterTriggers are the triggers, with their tables, that fire after the guard and could change
	// the stamp.
	LaterTriggers []string
	// Above is the highest stamp above that epoch, 0 if there is none or if they were not
	// looked at.
	Above int64 `db:"-"`
}

// Prepared is a prepared transaction that has locked the row of a fence.
type Prepared struct{ ID, Owner, Resource string }

// Place is a worker of a resource that is connected from several addresses.
type Place struct {
	Label     string // resource/worker
	Addresses []string
}
