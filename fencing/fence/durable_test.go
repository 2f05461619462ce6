package fence_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAGrantSurvivesACrash crashes the server right after a grant has returned, with
// asynchronous commits as the default.
func TestAGrantSurvivesACrash(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithConfig(map[string]string{"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}))
	h := fencetest.New(t, s)
	h.Grant("a")
	for _, c := range []struct {
		name  string
		award func(fencing.Term) fencing.Award
	}{
		{"a new candidacy", func(fencing.Term) fencing.Award { return h.Award("b") }},
		{"another award to the same candidacy", func(fencing.Term) fencing.Award {
			a := h.Award("b")
			a.Held = 2
			return a
		}},
	} {
		a := c.award(fencing.Term{})
		epoch, err := h.Fence.Grant(h.Ctx(), a)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		s.Crash(t)
		s.Restart(t)
		h.Fence = h.NewFence(h.Open())
		rec, err := h.Fence.Record(h.Ctx())
		if err != nil || rec.Epoch != epoch || rec.Incarnation != a.Incarnation || rec.Index != a.Index {
			t.Errorf("%s: after the crash %+v, %v; want epoch %d and index %d", c.name, rec, err, epoch, a.Index)
		}
		if err := h.Fence.Verify(h.Ctx(), fencing.Term{Award: a, Epoch: epoch}); err != nil {
			t.Errorf("%s: the row after the crash: %v", c.name, err)
		}
	}
}

// TestAStandbyGrantsNothing: a grant on a hot standby is refused as a fence that cannot be
// used, so that a candidacy gives its lease back at once. After a promotion it succeeds.
func TestAStandbyGrantsNothing(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	h := fencetest.New(t, s)
	h.Grant("a")
	s.Stop(t, pgtest.Fast)
	signal := filepath.Join(s.DataDir(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.Restart(t)
	award := h.Award("b")
	_, err := h.Fence.Grant(h.Ctx(), award)
	if fencetest.StateOf(err) != fencing.StateNoFence {
		t.Errorf("a grant on a standby: %v; want ZF004", err)
	} else {
		fencetest.MustContain(t, err, "standby")
	}
	s.Exec(t, pgtest.Superuser, "postgres", "SELECT pg_promote()")
	if epoch, err := h.Fence.Grant(h.Ctx(), award); err != nil || epoch != 2 {
		t.Errorf("a grant after the promotion: epoch %d, %v; want 2", epoch, err)
	}
}

// setStandbys sets synchronous_standby_names to nothing, or to a standby that does not exist yet,
// and waits until commits are treated accordingly, which is when the checkpointer has read the setting.
func setStandbys(h *fencetest.Database, names string) {
	h.T.Helper()
	h.Server.Exec(h.T, pgtest.Superuser, "postgres", "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'", "SELECT pg_reload_conf()")
	if names == "" {
		return // all waits end then
	}
	fixture.Eventually(h.T, "the server to read its settings", func() bool {
		return fencetest.Ask[bool](h, "SELECT current_setting('synchronous_standby_names') = $1", names)
	})
	h.Server.Exec(h.T, pgtest.Superuser, "postgres", "CHECKPOINT") // before which the checkpointer has read them, too
}

// TestAGrantThatNoStandbyConfirmedCountsAsNotGranted cancels a grant while it waits for
// a missing standby. By default, the database's sessions do not even see that.
func TestAGrantThatNoStandbyConfirmedCountsAsNotGranted(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	h := fencetest.New(t, s)
	term := h.Grant("a")
	unsettle(h)
	setStandbys(h, "ghost")
	a := h.Award("b")
	for _, atServer := range []bool{false, true} { // asking again with the same award waits for the standby too
		ctx, cancel := context.WithCancel(h.Ctx())
		result := make(chan error, 1)
		go func() {
			_, err := h.Fence.Grant(ctx, a)
			result <- err
		}()
		fixture.Eventually(t, "the grant waits for the standby", func() bool {
			return fencetest.Ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')")
		})
		if atServer {
			fixture.Eventually(t, "the report", func() bool { return len(h.Fence.BlockedBy()) == 1 })
			s.Exec(t, pgtest.Superuser, "postgres", "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
		} else {
			cancel()
		}
		if err := <-result; !errors.Is(err, fence.ErrUnconfirmed) {
			t.Errorf("got %v, want ErrUnconfirmed", err)
		}
		cancel()
	}
	unblocked := make(chan error, 1)
	go func() { unblocked <- h.Fence.AwaitUnblocked(h.Ctx()) }()
	fixture.Eventually(t, "it is asked whether the standbys confirm", func() bool {
		return fencetest.Ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')")
	})
	select {
	case err := <-unblocked:
		t.Errorf("without a standby, nothing blocks any more: %v", err)
	default:
	}
	if by := h.Fence.BlockedBy(); len(by) != 1 || !strings.Contains(by[0], "'ghost'") {
		t.Errorf("meanwhile it is blocked by %q", by)
	}
	setStandbys(h, "")
	if err := <-unblocked; err != nil || len(h.Fence.BlockedBy()) != 0 {
		t.Errorf("after the end of the wait: %v, %q", err, h.Fence.BlockedBy())
	}
	epoch, err := h.Fence.Grant(h.Ctx(), a)
	if err != nil || epoch != term.Epoch+1 {
		t.Errorf("the same award again: epoch %d, %v; want %d", epoch, err, term.Epoch+1)
	}
}

// unsettle gives the database defaults that would change what statements do or return, and makes the
// store reconnect. It returns what the connections must have in their place.
func unsettle(h *fencetest.Database) map[string]string {
	h.T.Helper()
	wanted := map[string]string{}
	for _, s := range [][3]string{
		{"client_min_messages", "error", "warning"}, {"exit_on_error", "on", "off"}, {"search_path", "public", "pg_catalog,pg_temp"},
		{"default_transaction_isolation", "serializable", "read committed"}, {"default_transaction_read_only", "on", "off"},
		{"default_transaction_deferrable", "on", "off"}, {"statement_timeout", "1s", "0"}, {"lock_timeout", "1ms", "0"},
		{"idle_in_transaction_session_timeout", "1ms", "0"}, {"standard_conforming_strings", "off", "on"},
		{"quote_all_identifiers", "on", "off"}, {"datestyle", "German, DMY", "ISO, MDY"}, {"intervalstyle", "sql_standard", "postgres"},
		{"bytea_output", "escape", "hex"}, {"row_security", "on", "off"},
	} {
		h.Server.Exec(h.T, pgtest.Superuser, "postgres", fmt.Sprintf("ALTER DATABASE %s SET %s = '%s'", pgx.Identifier{h.DB}.Sanitize(), s[0], s[1]))
		wanted[s[0]] = s[2]
	}
	h.Fences.CloseIdle()
	return wanted
}

// TestDefaultsOfTheDatabaseDoNotReachTheStore covers each setting that the store relies on.
func TestDefaultsOfTheDatabaseDoNotReachTheStore(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	wanted := unsettle(h)
	h.Server.Exec(t, pgtest.Superuser, "postgres", "ALTER DATABASE "+pgx.Identifier{h.DB}.Sanitize()+" SET role = pg_read_all_stats") // whose member the control role is
	h.Fences.CloseIdle()
	wanted["role"] = "none"
	for name, want := range wanted {
		var got string
		if err := h.Fences.Pool().QueryRow(h.Ctx(), "SELECT current_setting($1)", name).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
	if one, two := h.Grant("a"), h.Grant("b"); two.Epoch != one.Epoch+1 {
		t.Errorf("epochs %d and %d", one.Epoch, two.Epoch)
	}
}

// TestAGrantIsUnconfirmedUntilAStandbyHasIt: one proxy was granted an epoch, another one only reads
// it, and cannot know that the first one has waited for the standbys.
func TestAGrantIsUnconfirmedUntilAStandbyHasIt(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	h := fencetest.New(t, s)
	reader := h.NewFence(h.Open())
	read := func(f *fence.Fence) fencing.Record {
		t.Helper()
		rec, err := f.Record(h.Ctx())
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	h.Grant("a")
	if rec := read(reader); rec.Epoch != 1 || rec.Unconfirmed {
		t.Errorf("without synchronous standbys: %+v", rec)
	}
	setStandbys(h, "standby")
	const waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%pg_logical_emit_message(%'"
	if rec := read(h.Fence); rec.Unconfirmed || fencetest.Ask[int](h, "SELECT count(*) "+waits) != 0 {
		t.Errorf("the proxy that was granted the epoch: %+v", rec)
	}
	if !read(reader).Unconfirmed {
		t.Error("confirmed without a standby")
	}
	for range 2 { // a wait that was cancelled proves nothing
		fixture.Eventually(t, "the wait for the standby to be cancelled", func() bool {
			return read(reader).Unconfirmed && fencetest.Ask[int](h, "SELECT count(*) FROM (SELECT pg_cancel_backend(pid) "+waits+") c") == 1
		})
	}
	if rec := read(reader); rec.Epoch != 1 || !rec.Unconfirmed {
		t.Errorf("after waits that were cancelled: %+v", rec)
	}
	s.Standby(t)
	fixture.Eventually(t, "the standby to confirm the grant", func() bool { return !read(reader).Unconfirmed })
	setStandbys(h, "") // otherwise, the removal of the database would wait for the standby, which ends first
}

func TestAUsersWarningIsNotTakenForAnUnconfirmedGrant(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	h.Server.Exec(t, pgtest.Superuser, h.DB,
		"CREATE FUNCTION public.warn() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'careful'; END $$",
		"CREATE EVENT TRIGGER careful ON ddl_command_end EXECUTE FUNCTION public.warn()")
	if term := h.Grant("a"); term.Epoch != 1 {
		t.Errorf("epoch %d, want 1", term.Epoch)
	}
}
