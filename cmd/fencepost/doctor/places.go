package doctor

import "strings"

const (
	// An extension's event triggers are not the operator's to change, and one whose function
	// names the schema is taken to ignore it.
	eventTriggersSQL = `SELECT t.evtname::text, t.evtfoid::regproc::text FROM pg_event_trigger t JOIN pg_proc p ON p.oid = t.evtfoid
		WHERE t.evtenabled <> 'D' AND t.evtevent IN ('ddl_command_start', 'ddl_command_end')
			AND (t.evttags IS NULL OR t.evttags && '{ALTER SEQUENCE,CREATE SEQUENCE,GRANT}') AND p.prosrc !~* 'fencepost'
			AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_event_trigger'::regclass AND d.objid = t.oid AND d.deptype = 'e') ORDER BY 1`

	// Only with upstream.application_name = worker. A name of 63 bytes may be cut, and the
	// same for two workers.
	placesSQL = `SELECT a.label, array_agg(DISTINCT a.address ORDER BY a.address)
		FROM (SELECT coalesce(substring(application_name FROM '\[(.*)\]$'), application_name) AS label, coalesce(host(client_addr), 'a Unix socket') AS address, usesysid
			FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND octet_length(application_name) < 63) a
		WHERE EXISTS (SELECT FROM fencepost.fence f WHERE starts_with(a.label, f.resource || '/'))
		GROUP BY a.label, a.usesysid HAVING count(DISTINCT a.address) > 1 ORDER BY 1`
)

var (
	eventTrigger = newKind(Warning, "event-trigger",
		"A grant alters the sequence of its resource, so the trigger runs at each takeover. If it raises an error, nobody can become leader (ZF004).")
	workerPlaces = newKind(Warning, "worker-places",
		"A proxy refuses a worker id that is in use from another address, but two proxies do not know of each other. They campaign for it separately: connections through one of them lead, and those through the other do not.")
)

// eventTriggers looks at what runs in a grant besides it.
func (f *findings) eventTriggers(d Database) {
	var named []string
	for _, t := range d.EventTriggers {
		named = append(named, t.Name+" (function "+t.Function+")")
	}
	if len(named) > 0 {
		f.addf(eventTrigger, "Let the functions return at once for objects of the schema fencepost, or restrict the triggers by WHEN TAG IN (...) to commands other than CREATE SEQUENCE, ALTER SEQUENCE and GRANT.",
			"event triggers fire at each grant: %s", strings.Join(named, ", "))
	}
}

// places looks for worker ids that are in use through several proxies.
func (f *findings) places(d Database) {
	var named []string
	for _, p := range d.Places {
		named = append(named, p.Label+" ("+strings.Join(p.Addresses, ", ")+")")
	}
	if len(named) > 0 {
		f.addf(workerPlaces, "Give each process a worker id of its own, and let all connections of a process go through one proxy.",
			"worker ids are in use through proxies at several addresses: %s", strings.Join(named, ", "))
	}
}
