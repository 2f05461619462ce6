package safety

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// state is what there is to see in a database and around it, one thing per line,
// without what differs from database to database.
func (h *writesCluster) state(t *testing.T, x *side) []string {
	t.Helper()
	return slices.Concat(h.heard(t, x), h.within(t, x))
}

// heard is what there is around a database, and what was notified in it.
func (h *writesCluster) heard(t *testing.T, x *side) []string {
	t.Helper()
	lines := h.around(t, x)
	for _, n := range x.heard {
		lines = append(lines, "heard "+n)
	}
	return lines
}

// around is what all databases of the server share: it is cheap to ask for.
func (h *writesCluster) around(t *testing.T, x *side) []string {
	t.Helper()
	lines := x.lines(t, aroundSQL) // and hears what was notified
	_ = filepath.Walk(h.dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() && info.Name() != "PG_VERSION" {
			lines = append(lines, fmt.Sprintf("file %s of %d bytes", path, info.Size()))
		}
		return nil
	})
	return unnamed(lines, x)
}

// within is what there is in the database itself.
func (h *writesCluster) within(t *testing.T, x *side) []string {
	t.Helper()
	return slices.Concat(unnamed(x.lines(t, catalogSQL), x), x.rows(t))
}

// digest stands for what there is in a database: the objects, and the rows that
// they hold.
type digest struct {
	objects string
	rows    []string
}

func (x *side) digest(t *testing.T) digest {
	t.Helper()
	return digest{x.lines(t, objectsSQL)[0], x.rows(t)}
}

func (d digest) is(other digest) bool {
	return d.objects == other.objects && difference(d.rows, other.rows) == ""
}

// rows is what the relations of the database hold.
func (x *side) rows(t *testing.T) []string {
	t.Helper()
	parts := x.once(t, `select format('select %L || r::text from only %s r', oid::regclass || ' has ', oid::regclass) from pg_class
		where relkind in ('r', 'm') and relispopulated and relnamespace not in ('pg_catalog'::regnamespace, 'fencepost'::regnamespace, 'information_schema'::regnamespace) and relpersistence <> 't'
		union all select format('select %L || concat(last_value, is_called) from %s', oid::regclass || ' is at ', oid::regclass) from pg_class
		where relkind = 'S' and relnamespace <> 'fencepost'::regnamespace and relpersistence <> 't'
		union all select $$select concat_ws(' ', 'large object', m.oid, lomowner::regrole, lomacl, data) from pg_largeobject_metadata m left join pg_largeobject l on loid = m.oid$$`)
	return unnamed(x.once(t, strings.Join(parts, " union all ")), x)
}

// mark changes with whatever is changed in the server: each change of a row, of
// an object or a lock on a row stands in the WAL, and has taken a transaction id
// if it was not undone. What changes without is in it too. It may also change
// with nothing: the server writes WAL of its own accord, and when a page is tidied.
func (h *writesCluster) mark(t *testing.T, x *side) string {
	t.Helper()
	all := append(x.lines(t, markSQL), h.around(t, x)...)
	return strings.Join(append(all, x.heard...), "\n")
}

// unnamed takes the database's name out of what it says.
func unnamed(lines []string, x *side) []string {
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], x.db, "{db}")
	}
	return lines
}

// versions is which version of each row there is in each relation, and where:
// it changes with all that was written and not undone, row locks among it.
func (x *side) versions(t *testing.T) []string {
	t.Helper()
	parts := x.once(t, `select format('select %L || count(*) || '' '' || coalesce(sum(hashtext(concat(ctid, xmin%s))), 0) from only %s', oid::regclass || ' ',
		case when oid >= 16384 then ', xmax' end, oid::regclass) from pg_class
		where relkind in ('r', 'm') and relispopulated and relpersistence <> 't' and relnamespace <> 'fencepost'::regnamespace`)
	return x.once(t, strings.Join(parts, " union all "))
}

// lines asks for one column of text, by a statement that stays prepared.
func (x *side) lines(t *testing.T, sql string) []string {
	t.Helper()
	return x.ask(t, sql, pgx.QueryExecModeCacheStatement)
}

// once is lines for a text that is not asked for again.
func (x *side) once(t *testing.T, sql string) []string {
	t.Helper()
	return x.ask(t, sql, pgx.QueryExecModeSimpleProtocol)
}

func (x *side) ask(t *testing.T, sql string, mode pgx.QueryExecMode) []string {
	t.Helper()
	rows, err := x.admin.Query(t.Context(), sql, mode)
	if err != nil {
		t.Fatalf("%.300s: %v", sql, err)
	}
	lines, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (string, error) {
		var s *string
		err := r.Scan(&s)
		if s == nil {
			return "(nothing)", err
		}
		return *s, err
	})
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

// markSQL is what mark asks for.
const markSQL = `
select concat_ws(' ', pg_current_wal_insert_lsn(), pg_snapshot_xmax(pg_current_snapshot()),
	(select string_agg(concat_ws(' ', oid, pg_sequence_last_value(oid)), ',' order by oid) from pg_class where relkind = 'S' and relpersistence <> 't'))`

// aroundSQL is what databases share.
const aroundSQL = `
select concat_ws(' ', 'object', n) from (
	select spcname as n from pg_tablespace union all select concat(rolname, rolcreatedb) from pg_roles
	union all select concat(datname, datallowconn, datconnlimit) from pg_database where datname ~ '^wp') o
union all select concat_ws(' ', 'shared comment', description) from pg_shdescription
union all select concat_ws(' ', 'setting', setrole::regrole, setconfig) from pg_db_role_setting s left join pg_database d on d.oid = setdatabase where setdatabase = 0 or datname = current_database() or datname ~ '^wp'
union all select concat_ws(' ', 'right of database', datacl, datdba::regrole) from pg_database where datname = current_database()
union all select concat_ws(' ', 'member', roleid::regrole, member::regrole) from pg_auth_members
union all select concat_ws(' ', 'prepared', gid) from pg_prepared_xacts
union all select concat_ws(' ', 'slot', slot_name) from pg_replication_slots
union all select concat_ws(' ', 'configured', pg_read_file('postgresql.auto.conf'))`

// objectsSQL is one line for catalogSQL.
const objectsSQL = `select md5(string_agg(l, '|' order by l)) from (select replace(l, current_database(), '{db}') from (` + catalogSQL + `) c (l)) c (l)`

// catalogSQL is what objects a database holds.
const catalogSQL = `
with u as (select oid from pg_namespace where nspname not in ('pg_catalog', 'information_schema', 'fencepost', 'ext', 'pg_toast') and nspname !~ '^pg_(toast_)?temp')
select concat_ws(' ', 'relation', c.oid::regclass, relkind, relpersistence, relowner::regrole, relacl, relrowsecurity, relforcerowsecurity, reloptions, relpages > 0, reltuples, relreplident, relispartition,
	(select amname from pg_am where oid = relam), (select spcname from pg_tablespace where oid = reltablespace)) from pg_class c where relnamespace in (select oid from u)
union all select concat_ws(' ', 'temporary', count(*) > 0) from pg_class where relpersistence = 't'
union all select concat_ws(' ', 'column', attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull, attgenerated, attidentity, attacl, attoptions, attstattarget, attisdropped, attstorage)
	from pg_attribute a join pg_class c on c.oid = attrelid where attnum > 0 and relnamespace in (select oid from u)
union all select concat_ws(' ', 'default', adrelid::regclass, pg_get_expr(adbin, adrelid)) from pg_attrdef
union all select concat_ws(' ', 'constraint', conname, conrelid::regclass, contypid::regtype, pg_get_constraintdef(oid), convalidated) from pg_constraint where connamespace in (select oid from u)
union all select concat_ws(' ', 'index', pg_get_indexdef(indexrelid), indisvalid, indisclustered, indisreplident) from pg_index where indexrelid >= 16384 and indrelid::regclass::text !~ '^(fencepost|pg_toast)'
union all select concat_ws(' ', 'view', oid::regclass, pg_get_viewdef(oid), relispopulated) from pg_class where relkind in ('v', 'm') and relnamespace in (select oid from u)
union all select concat_ws(' ', 'rule', pg_get_ruledef(oid), ev_enabled) from pg_rewrite where oid >= 16384 and rulename <> '_RETURN'
union all select concat_ws(' ', 'trigger', pg_get_triggerdef(oid), tgenabled) from pg_trigger where not tgisinternal
union all select concat_ws(' ', 'policy', polname, polrelid::regclass, polcmd, pg_get_expr(polqual, polrelid)) from pg_policy
union all select concat_ws(' ', 'routine', oid::regprocedure, prosrc, prokind, provolatile, proisstrict, proowner::regrole, proacl, prosecdef, proconfig) from pg_proc where pronamespace in (select oid from u)
union all select concat_ws(' ', 'type', oid::regtype, typtype, typowner::regrole, typacl, typnotnull, typdefault) from pg_type where typnamespace in (select oid from u)
union all select concat_ws(' ', 'label', enumtypid::regtype, enumlabel, enumsortorder) from pg_enum
union all select concat_ws(' ', 'schema', nspname, nspowner::regrole, nspacl) from pg_namespace where oid in (select oid from u)
union all select concat_ws(' ', 'operator', oid::regoperator, oprowner::regrole) from pg_operator where oid >= 16384
union all select concat_ws(' ', 'cast', castsource::regtype, casttarget::regtype, castcontext) from pg_cast where oid >= 16384
union all select concat_ws(' ', 'object', n) from (
	select opcname::text as n from pg_opclass where oid >= 16384 union all select opfname from pg_opfamily where oid >= 16384 union all select conname from pg_conversion where oid >= 16384
	union all select collname from pg_collation where oid >= 16384 union all select dictname from pg_ts_dict where oid >= 16384 union all select cfgname from pg_ts_config where oid >= 16384
	union all select lanname from pg_language where oid >= 16384 union all select amname from pg_am where oid >= 16384 union all select fdwname from pg_foreign_data_wrapper
	union all select concat(extname, extversion) from pg_extension union all select concat(evtname, evtenabled) from pg_event_trigger union all select subname from pg_subscription where subdbid = (select oid from pg_database where datname = current_database())
	union all select tmplname from pg_ts_template where oid >= 16384 union all select stxname from pg_statistic_ext) o
union all select concat_ws(' ', 'server', srvname, srvoptions, srvacl) from pg_foreign_server
union all select concat_ws(' ', 'mapping', srvname, usename, umoptions) from pg_user_mappings
union all select concat_ws(' ', 'foreign', ftrelid::regclass, ftoptions) from pg_foreign_table
union all select concat_ws(' ', 'publication', pubname, puballtables, (select count(*) from pg_publication_rel where prpubid = p.oid)) from pg_publication p
union all select concat_ws(' ', 'comment', classoid::regclass, description) from pg_description where objoid >= 16384
union all select concat_ws(' ', 'default right', defaclrole::regrole, defaclobjtype, defaclacl) from pg_default_acl
union all select concat_ws(' ', 'statistics', starelid::regclass, count(*)) from pg_statistic where starelid >= 16384 group by starelid`
