package protocol_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// superseded is the status of a worker that led.
var superseded = &fencing.Status{Role: fencing.Superseded, Epoch: 7, Holder: fencing.Record{Worker: "other", Epoch: 9}}

// discards makes h one whose worker was superseded, and discards.
func (h *harness) discards() {
	h.config = func(c *protocol.Config) { c.Discards, c.Announced = true, 7 }
	h.status.Store(superseded)
}

// alike are statements, and those that Postgres answers the same because they change nothing. One without another
// fails before it runs.
var alike = [][2]string{
	{"insert into t (v) values ('mine')", "insert into t (v) select 'mine' where false"},
	{"insert into t values (1, 'mine') on conflict (id) do update set v = 'mine' returning *, id || '!' as w", "insert into t select 1, 'mine' where false on conflict (id) do update set v = 'mine' returning *, id || '!' as w"},
	{"with x as (insert into t (v) values ('mine') returning id) update c set v = 'x' from x returning c.id, null, 1.5::numeric(4, 2)", "update c set v = 'x' where false returning c.id, null, 1.5::numeric(4, 2)"},
	{"delete from c returning c, c.v", "delete from c where false returning c, c.v"},
	{"merge into c using t on c.id = t.id when matched then delete when not matched then insert values (9, 'mine')", "merge into c using t on c.id = t.id and false when matched then delete"},
	{"insert into t (v) values ('mine'); -- alone", "insert into t (v) select 'mine' where false; -- alone"},
	{"insert into nowhere values (1)", ""}, {"update c set v = 1 + 'ä'", ""}, {"delete from c where id", ""}, {"insert into c values (1, 'mine') returning nothing", ""}, {"insert into c values (1, 'mine', 2)", ""}, {"delete from c where", ""}, {"delete from c where v = '", ""},
}

// discardForms send a statement that is answered without an error.
var discardForms = map[string]func(sql string) [][]byte{
	"query": func(sql string) [][]byte { return [][]byte{Q(sql), Q("select 1"), Q(sql)} },
	"extended": func(sql string) [][]byte {
		return [][]byte{Batch(Parse("", sql), Desc('S', ""), Bind("", ""), Desc('P', ""), Exec("", 1))}
	},
	"block": func(sql string) [][]byte {
		return [][]byte{Q("begin"), Q(sql), Q("select * from c"), Batch(Run(sql)), Q("savepoint a"), Q(sql), Q("rollback to a"), Q(sql), Q("commit"), Q("begin isolation level serializable"), Batch(Run(sql)), Q("commit and chain"), Q(sql), Q("rollback")}
	},
	"prepared": func(sql string) [][]byte {
		run := Cat(Bind("", "s"), Exec("", 0))
		return [][]byte{Batch(Parse("s", sql), Desc('S', "s")), Batch(run), Batch(run), Batch(run, run, Run("select 1"), run), Batch(Shut('S', "s"), Run("select 1")), Batch(run)}
	},
	"pipeline": func(sql string) [][]byte {
		return [][]byte{Batch(Run("select 1"), Run(sql), Run(sql), Run("select * from c"), Shut('P', "x"), Run(sql), Run("select 1/0"), Run(sql)), Batch(Run("begin"), Run(sql), Run("select 1"), Run("commit"))}
	},
	"one after another": func(sql string) [][]byte {
		return [][]byte{Cat(Q(sql), Q("select 1"), Batch(Run(sql)), Q(sql), Batch(Run(sql), Flush(), Run(sql)))}
	},
	"named portals": func(sql string) [][]byte {
		return [][]byte{Batch(Parse("", sql), Bind("p", ""), Bind("q", ""), Desc('P', "p"), Exec("q", 0), Exec("p", 0))}
	},
	"a portal that is not": func(sql string) [][]byte {
		return [][]byte{Batch(Parse("", sql), Bind("p", ""), Shut('P', "p"), Exec("p", 0))}
	},
	"the unnamed is gone": func(sql string) [][]byte {
		return [][]byte{Batch(Parse("", "select 1")), Q(sql), Batch(Bind("", ""), Exec("", 0))}
	},
	"not read by the server": func(sql string) [][]byte {
		return [][]byte{wiretest.Msg('Q', []byte(sql+"\x00x")), Batch(Parse("", sql), Bind("", ""), wiretest.Msg('E', []byte("\x00\x00")))}
	},
	"failed": func(sql string) [][]byte {
		return [][]byte{Q("begin"), Q("select 1/0"), Q(sql), Batch(Run(sql)), Q("commit"), Q(sql)}
	},
}

// TestDiscardedWritesAreAnsweredAsByPostgres compares each reply with what Postgres answers a statement that changes
// nothing.
func TestDiscardedWritesAreAnsweredAsByPostgres(t *testing.T) {
	h := newHarness(t, 18)
	withTables(h)
	h.discards()
	for i, pieces := range []int{0, 1, 7} {
		h.pieces.Store(int32(pieces))
		for name, form := range discardForms {
			for j, sql := range alike {
				if i > 0 && j%3 != i {
					continue
				}
				if nothing := cmp.Or(sql[1], sql[0]); nothing != sql[0] || name != "not read by the server" {
					t.Run(fmt.Sprintf("%s of %.30s", name, sql[0]), func(t *testing.T) {
						h.in(t)
						direct, fenced, steps := h.direct(), h.connect(), form(nothing)
						for k, step := range form(sql[0]) {
							want, got := answers(direct, steps[k], false), answers(fenced, step, false)
							if w, g := strings.Join(want, "\n"), strings.Join(got, "\n"); w != g {
								t.Errorf("step %d: got\n%.1500s\nwant\n%.1500s", k, g, w)
							}
						}
					})
				}
			}
		}
	}
	if h.rows(t) != 0 || len(h.errs) > 0 {
		t.Errorf("%d rows, %v", h.rows(t), h.errs)
	}
	for _, r := range h.rejected {
		if r.Kind != fencing.KindDiscarded || !r.Write || r.SQLState != "ZF001" || r.Statement == "" || r.Held != 7 || r.Finding.Current != 9 {
			t.Errorf("rejected %+v", r)
		}
	}
	if h.stale == 0 || h.stale != len(h.rejected) {
		t.Errorf("superseded %d times of %d", h.stale, len(h.rejected))
	}
}

// TestWhatIsNotDiscarded is refused with ZF001, or is what may run. On 15, nothing is discarded.
func TestWhatIsNotDiscarded(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		h.discards()
		led, discarded := Batch(Bind("", "led", "mine"), Exec("", 0)), ""
		if h.major < 16 {
			discarded = "ZF001"
		}
		c := h.led(Batch(Parse("led", "insert into t (v) values ($1) returning id"), Run("prepare x as "+mine)))
		for _, m := range [][]byte{
			Q("truncate t"), Q("copy t (v) from stdin"), Q("create table made (a int)"), Q(mine + "; " + mine), Q("select 1; commit; " + mine), Q("select * from t for update"), Q("select nextval('t_id_seq')"), Q("notify wp"), Q("do $$begin end$$"),
			Q("with x as (" + mine + " returning id) select * from x"), Q("insert into t (v) values (pg_notify('wp', 'x')::text)"), Q("explain analyze " + mine), Batch(Run("truncate t")), Batch(Parse("s", "lock table t")), Q("insert into t (v) values ('" + strings.Repeat("x", 1<<20) + "')"),
			Batch(Run("select 1"), Run("truncate t"), Run(mine)),
		} {
			if got := each(c, m); !slices.Equal(got, []string{"ZF001"}) {
				t.Errorf("%.60q is answered by %q", m, got)
			}
		}
		expect(t, c, []string{discarded, discarded, discarded}, Q(mine), Batch(Run(mine)), led)
		expect(t, c, []string{"", "", "ZF001", "25P02", ""}, Q("begin"), Q("select * from c"), Q("truncate t"), Q(mine), Q("commit"))
		expect(t, c, []string{"", "ZF005", ""}, Q("select * from c"), Batch(Run("begin"), Run("commit"), Run("select 1")), Q("rollback"))
		if h.major >= 16 {
			expect(t, c, []string{"", "", "", "ZF001", ""}, Q("begin"), led, Batch(Bind("p", "led", "mine")), Batch(Exec("p", 0)), Q("rollback"))
			expect(t, c, []string{"ZF001", "ZF001"}, Q("execute x"), Batch(Run("execute x")))
		}
		if h.stale != len(h.rejected)-1 || slices.Contains(h.needs, protocol.NeedRegister) { // ZF005 is one more
			t.Errorf("superseded %d times of %d, needed %v", h.stale, len(h.rejected), h.needs)
		}
		if all := c.Exec("show fencepost.role"); !strings.Contains(bodies(all), "superseded") {
			t.Errorf("the role is %v", all)
		}
		if n := h.rows(t); n != 0 || len(h.errs) > 0 {
			t.Errorf("%d rows, %v", n, h.errs)
		}
	})
}

// writtenIn counts what TestSafetyDiscardedWritesWriteNothing would have written.
func writtenIn(t *testing.T, h *harness) int {
	return pgtest.Ask[int](t, h.pg, h.db, "select (select count(*) from t)::int + (select count(*) from f)::int + (select count(*) from c where id = 7 or v = 'w')::int")
}

func bodies(all []wiretest.Message) (text string) {
	for _, m := range all {
		text += string(m.Body)
	}
	return text
}

// TestSupersededInABatch: a portal of a worker that is superseded between its Bind and its Execute is discarded.
func TestSupersededInABatch(t *testing.T) {
	h := newHarness(t, 18)
	withTables(h)
	h.discards()
	h.status.Store(&fencing.Status{Lapsed: true, Epoch: 7})
	c := h.connect()
	c.Send(Cat(Parse("", mine), Bind("", ""), Desc('P', ""), Flush()))
	c.Until('n')
	h.status.Store(superseded)
	expect(t, c, []string{""}, Batch(Exec("", 0)))
	if len(h.rejected) != 1 || h.rejected[0].Kind != fencing.KindDiscarded || h.rows(t) != 0 {
		t.Errorf("rejected %+v, %d rows", h.rejected, h.rows(t))
	}
}

// TestSafetyDiscardedWritesWriteNothing sends each way to write in many forms, with functions that are called while a
// statement is parsed or planned.
func TestSafetyDiscardedWritesWriteNothing(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		h.discards()
		writeNothing(t, h, 2)
		h.exec(`create function freed(v text) returns boolean language plpgsql as $$begin reset transaction_read_only; perform public.wr(v); set transaction_read_only = on; return true; exception when others then return true; end$$;
			create domain fd as text check (freed(value)); create table f (a fd); grant all on f to public`)
		for _, sql := range []string{"update c set v = 'w' where id = lies()", "insert into c values (7, ('{w}'::wd[])[1])", "insert into c values (7, ('{w}'::fd[])[1]) returning 'w'::fd", "insert into f values ('w')"} {
			for name, form := range forms {
				c := h.connect()
				for _, step := range form(sql) {
					each(c, step)
				}
				if n := writtenIn(t, h); n != 0 {
					t.Fatalf("%s: %s has written %d rows", name, sql, n)
				}
			}
		}
		c := h.connect()
		each(c, Batch(Run("insert into f values ($1)", "w")), Batch(Parse("", "insert into f values ($1)"), Bind("", "", "w")), Batch(Run("begin"), Run("insert into f values ($1)", "w"), Run("commit")), Q("begin"), Batch(Run("insert into f values ($1)", "w")), Q("commit"))
		if n := writtenIn(t, h); n != 0 || len(h.errs) > 0 {
			t.Errorf("%d rows, %v", n, h.errs)
		}
	})
}

// TestSafetyDiscardedAtRandom sends random scripts of all that writes. What is discarded is parsed, which locks its table.
func TestSafetyDiscardedAtRandom(t *testing.T) {
	randomWrites(t, strings.Replace(state, locks, "0", 1), (*harness).discards)
}
