package doctor

import "strings"

// placesSQL: only with upstream.application_name = worker. A name of 63 bytes may be cut, and the
// same for two workers.
const placesSQL = `SELECT a.label, array_agg(DISTINCT a.address ORDER BY a.address)
	FROM (SELECT coalesce(substring(application_name FROM '\[(.*)\]$'), application_name) AS label, coalesce(host(client_addr), 'a Unix socket') AS address, usesysid
		FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND octet_length(application_name) < 63) a
	WHERE EXISTS (SELECT FROM fencepost.fence f WHERE starts_with(a.label, f.resource || '/'))
	GROUP BY a.label, a.usesysid HAVING count(DISTINCT a.address) > 1 ORDER BY 1`

var workerPlaces = newKind(Warning, "worker-places",
	"A proxy refuses a worker id that is in use from another address, but two proxies do not know of each other. They campaign for it separately: connections through one of them lead, and those through the other do not.")

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
