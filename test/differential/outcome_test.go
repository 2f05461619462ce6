package differential

import (
	"runtime"

	"github.com/fencepost/fencepost/internal/pgtest"
)

// direct runs s on Postgres itself.
func (r *database) direct(s script) (outcome, error) {
	r.heard = nil
	return r.outcome(run(target{
		network: "unix", address: socketOf(r.cluster.PG),
		params: r.params(), asleep: r.asleep, sleeps: r.sleeps, beside: r.do, witness: r.witness,
	}, s))
}

// asleep reports whether a server process waits for its client.
func (r *database) asleep(pid uint32) bool {
	var waits bool
	err := r.ask(&waits, "select exists (select from pg_stat_get_activity($1) where wait_event = 'ClientRead')", int32(pid))
	return err == nil && waits
}

// sleeps reports whether a server process is in pg_sleep.
func (r *database) sleeps(pid uint32) bool {
	var sleeps bool
	err := r.ask(&sleeps, "select exists (select from pg_stat_get_activity($1) where wait_event = 'PgSleep')", int32(pid))
	return err == nil && sleeps
}

// proxied runs s through Fencepost, as worker w.
func (r *database) proxied(s script, like []seen, before func(int)) (outcome, error) {
	return r.outcome(r.run(s, like, before))
}

// run sends s through Fencepost, without reading the contents.
func (r *database) run(s script, like []seen, before func(int)) (transcript, error) {
	r.heard = nil
	return run(target{
		network: "tcp", address: r.cluster.Addr,
		params: append(r.params(), "options", "-c fencepost.resource=r -c fencepost.worker=w"),
		like:   like, before: before, asleep: r.asleep, sleeps: r.sleeps, beside: r.do, witness: r.witness,
	}, s)
}

func (r *database) params() []string {
	return []string{"user", pgtest.App, "database", r.name, "client_encoding", "UTF8"}
}

// stuckAt is the prefix of what witness returns.
const stuckAt = "\nthe server's processes:\n"

// witness describes the server's processes and this process's goroutines.
func (r *database) witness() string {
	var backends string
	if err := r.ask(&backends, `select string_agg(format('%s %s %s %s %s %s', pid, usename, state, wait_event_type, wait_event, left(query, 200)), e'\n')
		from pg_stat_activity where datname = current_database()`); err != nil {
		backends = err.Error()
	}
	stacks := make([]byte, 4<<20)
	return stuckAt + backends + "\nthe goroutines:\n" + string(stacks[:runtime.Stack(stacks, true)])
}

// outcome is the result of a script.
type outcome struct {
	transcript
	contents contents
	heard    []string // by the administrator
	in       *database
}

// outcome reads the database.
func (r *database) outcome(t transcript, err error) (outcome, error) {
	if err == nil {
		err = r.look()
	}
	return outcome{t, r.now, r.heard, r}, err
}
