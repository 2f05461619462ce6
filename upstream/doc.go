// Package upstream knows the servers of one Postgres, a primary and its standbys, and which
// of them is the primary.
//
// Clients authenticate with Postgres themselves, and Fencepost relays that once. It cannot
// try one server after another for a client, as libpq does with several hosts, so it must know
// the primary before it connects. Servers therefore looks at each host every second, and
// keeps what it found.
//
// The primary is the host that accepts writes: it is neither in recovery nor read-only by
// default, as libpq's target_session_attrs=read-write means it. If several do, the newest
// timeline decides, because each promotion begins one; a standby that has received a newer one
// counts too. A former primary that comes back without having become a standby is therefore
// never taken for the primary again, not even while the new one is down. Timelines of one number
// may be different histories, so each belongs to the host that was first seen writing in it.
// choose.go and history.go have the whole decision.
//
// A Primary has a tenure: the time for which connections to it are of use. A tenure ends when
// another host is the primary, when a newer timeline is known, or when the host itself has become
// a standby. It does not end because the host does not answer: that says nothing about its
// connections, and they end by themselves if it has crashed. While the primary is not known to
// accept writes, there is none for new connections.
//
// If there is a single host, it is the primary, whatever it is, and is never looked at.
package upstream
