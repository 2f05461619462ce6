package safety

import (
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// ownRole makes, once, a role with the rights of app that no other test sets
// parameters of: roles belong to the whole server, which tests share. It has the
// name of the database.
func ownRole(s *fixture.Cluster) string {
	s.T.Helper()
	if s.Number("select count(*) from pg_roles where rolname = $1", s.DB) == 0 {
		s.Exec("create role " + s.DB + " login in role " + pgtest.App)
	}
	return s.DB
}

// lockWaiters reports how many backends wait for a lock of that kind.
func lockWaiters(s *fixture.Cluster, kind string) int {
	return s.Number("select count(*) from pg_locks join pg_stat_activity using (pid) where not granted and locktype = $1 and datname = current_database()", kind)
}

// atTheGate returns the process id of the backend that waits for an advisory lock, or 0.
func atTheGate(s *fixture.Cluster) int {
	return s.Number("select coalesce(min(pid), 0) from pg_locks join pg_stat_activity using (pid) where not granted and locktype = 'advisory' and datname = current_database()")
}

// awaitEnd waits until the backend has ended. None has the process id 0.
func awaitEnd(s *fixture.Cluster, pid int) {
	s.T.Helper()
	fixture.Eventually(s.T, "the worker's backend has ended", func() bool {
		return s.Number("select count(*) from pg_stat_activity where pid = $1", pid) == 0
	})
}

func oidOf(s *fixture.Cluster, sql string) int {
	s.T.Helper()
	return s.Number("select (" + sql + ")::oid::int8::int")
}
