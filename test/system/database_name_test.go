package system

import (
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestADatabaseWhoseNameIsNoUTF8 checks that a refused write there does not crash the
// proxy.
func TestADatabaseWhoseNameIsNoUTF8(t *testing.T) {
	t.Parallel()
	h := newHouse(t, "postgres")
	p := h.proxy()
	victim := h.join(p, "a", "campaign", "wait")
	h.pg.Exec(t, pgtest.Superuser, h.db, "create database "+h.db+"_l encoding 'latin1' lc_collate 'C' lc_ctype 'C' template template0")
	a, _ := wiretest.Connect(t, h.pg.Addr(), "user", pgtest.Superuser, "database", h.db+"_l", "client_encoding", "latin1")
	a.Exec("create database \"" + h.db + "_\xe9\" encoding 'latin1' lc_collate 'C' lc_ctype 'C' template template0")
	c, _ := wiretest.Connect(t, p.address, "user", pgtest.App, "database", h.db+"_\xe9")
	c.Send(wiretest.Query("create temp table t (a int)"))
	if all := c.Until('Z'); wiretest.ErrorOf(all) != "ZF002" {
		t.Errorf("a write without a resource: %v", all)
	}
	if err := victim.exec("select 1"); err != nil {
		t.Errorf("another client: %v; the process has ended: %v", err, p.ended())
	}
}
