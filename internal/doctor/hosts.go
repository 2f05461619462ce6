package doctor

import "github.com/fencepost/fencepost/upstream"

var (
	hostUnknown = newKind(Warning, "upstream-host",
		"Fencepost does not follow a failover to this host.")
	twoPrimaries = newKind(Error, "two-primaries",
		"Fencepost does not connect workers to it. Whoever writes there past Fencepost writes into a history that the primary does not have.")
)

// hosts looks at the hosts of upstream.address.
func (f *findings) hosts(all []upstream.HostStatus) {
	f.where = "Postgres"
	for _, h := range all {
		seen := h.Address + " " + h.Is
		switch h.State {
		case upstream.Unreachable:
			f.add(hostUnknown, seen, "Start it, let the control role log in there to the database postgres or control.probe_database, or remove it from upstream.address.")
		case upstream.OtherSystem:
			f.add(hostUnknown, seen, "Name only the primary and its standbys in upstream.address.")
		case upstream.SameServer:
			f.add(hostUnknown, seen, "Name each server once in upstream.address.")
		case upstream.FormerPrimary, upstream.SecondPrimary:
			f.add(twoPrimaries, seen, "Stop it, and make it a standby of the primary (pg_rewind).")
		}
	}
}
