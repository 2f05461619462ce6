package service_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// TestADatabaseThatDoesNotAnswerHidesNoWarning checks that its last warnings stay, marked as such, that
// those of other databases are up to date, and that it is asked again soon. One that was dropped has none.
func TestADatabaseThatDoesNotAnswerHidesNoWarning(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	r := servicetest.Start(t, s, nil)
	blocked, other := s.Database(t), s.Database(t)
	for _, db := range []string{blocked, other} {
		s.Exec(t, pgtest.Control, db, "CREATE TABLE fencepost.said (said text)", "INSERT INTO fencepost.said VALUES ('the first warning')",
			"CREATE OR REPLACE FUNCTION fencepost.warnings() RETURNS SETOF text LANGUAGE sql STABLE AS 'SELECT said FROM fencepost.said'")
		r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=a")
	}
	const first, second = "the first warning", "the second warning"
	warned := func(of, part string) (bool, time.Duration) {
		list, counts := service.Warnings(r.Server, t.Context())
		return slices.ContainsFunc(list, func(w string) bool {
			return strings.HasPrefix(w, "database "+of+": ") && strings.Contains(w, part)
		}), counts
	}
	for _, db := range []string{blocked, other} {
		servicetest.Eventually(t, "the warnings of database "+db, func() bool {
			found, counts := warned(db, first)
			return found && counts == service.WarnedFor
		})
	}
	conn := s.Connect(t, pgtest.Control, blocked)
	if err := servicetest.Exec(t, conn, "BEGIN; LOCK TABLE fencepost.said"); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, pgtest.Control, other, "UPDATE fencepost.said SET said = 'the second warning'")
	servicetest.Eventually(t, "the new warning of the database that answers", func() bool {
		found, counts := warned(other, second)
		if counts != service.PartlyFor {
			t.Errorf("the warnings count for %v while one database does not answer", counts)
		}
		return found
	})
	if found, _ := warned(blocked+", as last known", first); !found {
		t.Error("the last warnings of the database that does not answer are lost")
	}
	service.ForgetWarnings(r.Server, blocked) // as if it had never answered
	if found, _ := warned(blocked, "its warnings are not known: read the warnings"); !found {
		t.Error("nothing says that the warnings of a database are not known")
	}
	if err := servicetest.Exec(t, conn, "UPDATE fencepost.said SET said = 'the second warning'; COMMIT"); err != nil {
		t.Fatal(err)
	}
	servicetest.Eventually(t, "the new warning of the other database", func() bool {
		found, counts := warned(blocked, second)
		return found && counts == service.WarnedFor
	})
	s.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+other+" WITH (FORCE)")
	servicetest.Eventually(t, "no warning of a database that was dropped", func() bool {
		list, counts := service.Warnings(r.Server, t.Context())
		return counts == service.WarnedFor && !slices.ContainsFunc(list, func(w string) bool { return strings.Contains(w, other) })
	})
}
