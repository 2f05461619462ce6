package system

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestADatabaseWhoseNameIsNoUTF8 checks that a refused write there does not crash the
// proxy.
func TestADatabaseWhoseNameIsNoUTF8(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p := h.proxy()
	victim := h.join(p, "a", "campaign", "wait")
	h.pg.Exec(t, pgtest.Superuser, h.db, "create database "+h.db+"_l encoding 'latin1' lc_collate 'C' lc_ctype 'C' template template0")
	a, _ := wiretest.Connect(t, h.pg.Addr(), "user", pgtest.Superuser, "database", h.db+"_l", "client_encoding", "latin1")
	a.Exec("create database \"" + h.db + "_\xe9\" encoding 'latin1' lc_collate 'C' lc_ctype 'C' template template0")
	c, _ := wiretest.Connect(t, p.Address, "user", pgtest.App, "database", h.db+"_\xe9")
	c.Send(wiretest.Query("create temp table t (a int)"))
	if all := c.Until('Z'); wiretest.ErrorOf(all) != "ZF002" {
		t.Errorf("a write without a resource: %v", all)
	}
	if err := victim.exec("select 1"); err != nil {
		t.Errorf("another client: %v; the process has ended: %v", err, p.Ended())
	}
}

// TestAnAliasOfADatabaseHasItsLease: Postgres cuts names at 63 bytes, so a longer name
// is the same database, and takes no lease from a leader that lives.
func TestAnAliasOfADatabaseHasItsLease(t *testing.T) {
	t.Parallel()
	for major, pg := range map[string]*pgtest.Server{"default": pgtest.Shared(t), "18": pgtest.SharedMajor(t, 18)} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, "consul", onServer(pg))
			long := h.db + strings.Repeat("n", 63-len(h.db))
			h.pg.Exec(t, pgtest.Superuser, "postgres", "create database "+long+" template "+h.db)
			t.Cleanup(func() { h.pg.Exec(t, pgtest.Superuser, "postgres", "drop database "+long+" with (force)") })
			h.db = long
			p := h.proxy()
			leader := h.join(p, "a", "campaign", "wait")
			leader.must("insert into work values ('a')")
			alias := *h
			alias.db += "more"
			other := alias.join(p, "b")
			if err := other.exec("insert into work values ('b')"); stateOf(err) != fencing.StateNotLeader {
				t.Errorf("the other worker's write: %v; want ZF002", err)
			}
			leader.must("insert into work values ('a again')")
			if got := h.granted(); got != "a" {
				t.Errorf("granted to %s; want to a alone", got)
			}
		})
	}
}
