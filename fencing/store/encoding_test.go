package store_test

import (
	"fmt"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/migrations"
)

// newTestDatabaseIn is newTestDatabase for a database with another encoding.
func newTestDatabaseIn(t *testing.T, s *pgtest.Server, encoding string) *testDatabase {
	t.Helper()
	h := &testDatabase{t: t, server: s, db: s.EmptyDatabase(t)}
	s.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+h.db,
		fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 ENCODING '%s' LC_COLLATE 'C' LC_CTYPE 'C'", h.db, encoding))
	if _, err := migrations.Up(h.ctx(), s.Connect(t, pgtest.Superuser, h.db), migrations.Options{Control: pgtest.Control}); err != nil {
		t.Fatal(err)
	}
	h.store = h.open()
	h.fence = h.newFence(h.store)
	return h
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
			a := h.award("a")
			a.Worker = name
			epoch, err := h.fence.Grant(h.ctx(), a)
			if !holds {
				if stateOf(err) != fencing.StateNoFence {
					t.Errorf("the grant: %v; want ZF004", err)
				}
				mustContain(t, err, "encoding")
				a.Worker = "plain"
				epoch, err = h.fence.Grant(h.ctx(), a)
			}
			if err != nil {
				t.Fatal(err)
			}
			if encoding == "SQL_ASCII" {
				h.namesAreLimitedInBytes() // as in UTF8
			}
			w := h.worker(fencing.Term{Award: a, Epoch: epoch})
			w.term.Worker = name
			if err := w.check(h.ctx()); err != nil {
				t.Errorf("the check of the leader: %v", err)
			}
			h.mustEnter(w)
			h.grant("b")
			w = h.worker(w.term)
			err = w.check(h.ctx())
			if stateOf(err) != fencing.StateSuperseded {
				t.Errorf("the check: %v; want ZF001", err)
			}
			mustContain(t, err, `worker "\"w\\\u6f22" was superseded`)
			_, err = h.fence.RegisterBackend(h.ctx(), w.entry())
			if stateOf(err) != fencing.StateSuperseded {
				t.Errorf("the registry: %v; want ZF001", err)
			}
		})
	}
}
