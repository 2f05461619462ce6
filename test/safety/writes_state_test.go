package safety

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
)

// mark is what there is to see of the server at one time. It changes with whatever
// is changed: each change of a row, of an object, or a lock on a row stands in the
// WAL. What does not stand there is in state.
type mark struct {
	position string // in the WAL
	state    []string
}

func (h *writesCluster) mark(t *testing.T) mark {
	t.Helper()
	lines := h.lines(t, stateSQL) // and hears what was notified
	_ = filepath.Walk(h.dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() && info.Name() != "PG_VERSION" {
			lines = append(lines, fmt.Sprintf("file %s of %d bytes", path, info.Size()))
		}
		return nil
	})
	for _, n := range h.heard {
		lines = append(lines, "heard "+n)
	}
	return mark{h.lines(t, "select pg_current_wal_insert_lsn()::text")[0], lines}
}

// since is what was changed since a mark, "" if nothing was.
func (h *writesCluster) since(t *testing.T, before mark) string {
	t.Helper()
	now := h.mark(t)
	changed := difference(now.state, before.state)
	if now.position == before.position {
		return changed
	}
	h.Exec("select pg_logical_emit_message(true, 'the end', '')") // which writes all before it to disk
	return changed + strings.Join(h.lines(t, fmt.Sprintf(writtenSQL, h.start, before.position, now.position)), "\n")
}

// unchanged fails the test if run changes anything. Its workers end, or wait for
// their clients.
func (h *writesCluster) unchanged(t *testing.T, run func()) {
	t.Helper()
	before := h.mark(t)
	run()
	h.settle(t)
	if !fencing.Checking {
		return // whatever run has found says it all
	}
	if changed := h.since(t, before); changed != "" {
		t.Errorf("something was changed:\n%s", changed)
	}
}

// settle waits until all backends of the workers wait for their clients.
func (h *writesCluster) settle(t *testing.T) {
	t.Helper()
	const sql = `select count(*)::text from pg_stat_activity
		where datname = current_database() and application_name = 'worker' and wait_event is distinct from 'ClientRead'`
	fixture.Eventually(t, "the workers' backends are at rest", func() bool { return h.lines(t, sql)[0] == "0" })
}

// lines asks for one column of text.
func (h *writesCluster) lines(t *testing.T, sql string) []string {
	t.Helper()
	rows, err := h.Admin.Query(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatalf("%.300s: %v", sql, err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%.2000s: %v", sql, err)
	}
	return lines
}

// difference lists the lines that only one of two has.
func difference(a, b []string) string {
	count := map[string]int{}
	for _, x := range a {
		count[x]++
	}
	for _, x := range b {
		count[x]--
	}
	var out []string
	for x, n := range count {
		if n != 0 {
			out = append(out, fmt.Sprintf("%+d %s", n, x))
		}
	}
	sort.Strings(out)
	return strings.Join(out, "\n")
}

// writtenSQL is what the WAL says between the last two of three positions, apart from what
// the server writes of its own accord and when it tidies a page, and from the locks with
// which Fencepost looks whether a backend may be registered. A MultiXact is written with the
// lock that needs it. The end of a transaction is left out if it has written nothing else
// since the first position: the registry is not logged.
const writtenSQL = `
with written as (select *, resource_manager || ' ' || record_type as what from ext.pg_get_wal_records_info('%[1]s', '%[3]s')),
	ends as (select * from written where what in ('Transaction COMMIT', 'Transaction ABORT')),
	changes as (select * from written where what not in ('Standby RUNNING_XACTS', 'Transaction COMMIT', 'Transaction ABORT')
		and what not like 'XLOG FPI%%' and what not like 'Heap2 PRUNE%%' and what not like 'MultiXact %%'
		and not (what = 'Heap LOCK' and block_ref like '%%/' || pg_relation_filenode('fencepost.fence') || ' %%'))
select concat_ws(' ', what, left(description, 300)) from (
	select * from changes union all select * from ends where xid in (select xid from changes)) x where start_lsn >= '%[2]s'`

// stateSQL is the sequences, and what databases share.
const stateSQL = `
select concat_ws(' ', 'sequence', oid, pg_sequence_last_value(oid)) from pg_class where relkind = 'S' and relpersistence <> 't'
union all select concat_ws(' ', 'object', n) from (
	select spcname as n from pg_tablespace union all select concat(rolname, rolcreatedb) from pg_roles
	union all select concat(datname, datallowconn, datconnlimit) from pg_database where datname ~ '^wp') o
union all select concat_ws(' ', 'shared comment', description) from pg_shdescription
union all select concat_ws(' ', 'setting', setrole::regrole, setconfig) from pg_db_role_setting s left join pg_database d on d.oid = setdatabase where setdatabase = 0 or datname = current_database() or datname ~ '^wp'
union all select concat_ws(' ', 'right of database', datacl, datdba::regrole) from pg_database where datname = current_database()
union all select concat_ws(' ', 'member', roleid::regrole, member::regrole) from pg_auth_members
union all select concat_ws(' ', 'prepared', gid) from pg_prepared_xacts
union all select concat_ws(' ', 'slot', slot_name) from pg_replication_slots
union all select concat_ws(' ', 'configured', pg_read_file('postgresql.auto.conf'))`
