package guards

import (
	"fmt"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestALeaderWritesInTheNameOfTheOwner has tables of a role that nobody logs in as: foreign keys
// and a function with SECURITY DEFINER write them under its name, for the leader only.
func TestALeaderWritesInTheNameOfTheOwner(t *testing.T) {
	t.Parallel()
	c := fixture.NewCluster(t, pgtest.Shared(t))
	c.Exec(`drop role if exists owner_of_heads; create role owner_of_heads; grant create on schema public to owner_of_heads; set role owner_of_heads;
create table head (id int primary key);
create table tail (id int, head int references head on update cascade on delete cascade);
insert into head values (1), (2); insert into tail values (1, 1), (2, 2);
create function insert_head() returns void language sql security definer as 'insert into public.head values (5)';
grant all on head, tail to app; reset role`)
	_ = leader(c) // creates the resource
	add(c, "public.head")
	add(c, "public.tail")
	c.Candidacy(c.DB, "r", "w").Grant()
	conn, direct := c.Join("w"), c.PG.Connect(t, pgtest.App, c.DB)
	for _, sql := range []string{"update head set id = 30 where id = 1", "delete from head where id = 2", "select insert_head()"} {
		if got := pgtest.StateOf(exec(t.Context(), direct, sql, false)); got != "ZF002" {
			t.Errorf("%s past the proxy: %q, want ZF002", sql, got)
		}
		if err := exec(t.Context(), conn, sql, false); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if n := c.Number(fmt.Sprintf("select count(*) from (select fence_epoch from head union all select fence_epoch from tail) x where fence_epoch = %d", epoch(c))); n != 3 {
		t.Errorf("%d rows are stamped, want 3", n)
	}
}
