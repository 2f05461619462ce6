package fence_test

import (
	"fmt"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/migrations"
)

// newTestDatabaseIn is newTestDatabase for a database with another encoding.
func newTestDatabaseIn(t *testing.T, s *pgtest.Server, encoding string) *fencetest.Database {
	t.Helper()
	h := &fencetest.Database{T: t, Server: s, DB: s.EmptyDatabase(t)}
	s.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+h.DB,
		fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 ENCODING '%s' LC_COLLATE 'C' LC_CTYPE 'C'", h.DB, encoding))
	if _, err := migrations.Up(h.Ctx(), s.Connect(t, pgtest.Superuser, h.DB), migrations.Options{Control: pgtest.Control}); err != nil {
		t.Fatal(err)
	}
	return h.Connect()
}

// TestNamesOutsideASCIIInEveryEncoding checks that a worker's name is treated as data:
// the check, the registry and the errors accept it in every encoding. If a database
// cannot represent it, the grant says so. TestErrorsAreASCIIWhateverTheNames is about UTF8.
func TestNamesOutsideASCIIInEveryEncoding(t *testing.T) {
	t.Parallel()
	for encoding, holds := range map[string]bool{"SQL_ASCII": true, "LATIN1": false, "EUC_JP": true} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			h := newTestDatabaseIn(t, pgtest.Shared(t), encoding)
			const name = `"w\漢`
			a := h.Award("a")
			a.Worker = name
			epoch, err := h.Fence.Grant(h.Ctx(), a)
			if !holds {
				if fencetest.StateOf(err) != fencing.StateNoFence {
					t.Errorf("the grant: %v; want ZF004", err)
				}
				fencetest.MustContain(t, err, "encoding")
				a.Worker = "plain"
				epoch, err = h.Fence.Grant(h.Ctx(), a)
			}
			if err != nil {
				t.Fatal(err)
			}
			if encoding == "SQL_ASCII" {
				namesAreLimitedInBytes(h) // as in UTF8
			}
			w := h.Worker(fencing.Term{Award: a, Epoch: epoch})
			w.Term.Worker = name
			if err := w.Check(h.Ctx()); err != nil {
				t.Errorf("the check of the leader: %v", err)
			}
			h.MustEnter(w)
			h.Grant("b")
			w = h.Worker(w.Term)
			err = w.Check(h.Ctx())
			if fencetest.StateOf(err) != fencing.StateSuperseded {
				t.Errorf("the check: %v; want ZF001", err)
			}
			fencetest.MustContain(t, err, `worker "\"w\\\u6f22" was superseded`)
			_, err = h.Fence.RegisterBackend(h.Ctx(), w.Request())
			if fencetest.StateOf(err) != fencing.StateSuperseded {
				t.Errorf("the registry: %v; want ZF001", err)
			}
		})
	}
}
