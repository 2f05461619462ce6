package system

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAPoolerIsNotPostgres: behind a connection pooler, backends cannot be told apart by their
// process ids, so workers are refused, and the operator is told why.
func TestAPoolerIsNotPostgres(t *testing.T) {
	t.Parallel()
	const ignored = "ignore_startup_parameters = fencepost.role, fencepost.epoch, fencepost.resource, fencepost.worker, search_path, " +
		"default_transaction_isolation, default_transaction_read_only, default_transaction_deferrable, statement_timeout, lock_timeout, " +
		"idle_in_transaction_session_timeout, idle_session_timeout, tcp_keepalives_idle, tcp_keepalives_interval, tcp_keepalives_count, " +
		"extra_float_digits"
	for name, settings := range map[string][]string{
		"session":                         nil,
		"session, parameters dropped":     {ignored},
		"transaction, parameters dropped": {ignored, "pool_mode = transaction"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, "postgres")
			p := h.proxy("UPSTREAM_ADDRESS="+pgtest.Pooler(t, h.pg, settings...), "CONTROL_PROBE_DATABASE="+h.db)
			_, err := h.tryJoin(process.Patience, p, "a")
			var refused *pgconn.PgError
			if !errors.As(err, &refused) || refused.Code != fencing.StateNoFence ||
				!strings.Contains(refused.Message, "connection pooler") || !strings.Contains(refused.Hint, "upstream.address") {
				t.Errorf("the worker is told %v; want ZF004 that names the pooler", err)
			}
			fault := awaitFault(t, p, faults.Upstream, "upstream.address")
			if !strings.Contains(fault.Problem, "connection pooler") {
				t.Errorf("the fault is %+v", fault)
			}
		})
	}
}
