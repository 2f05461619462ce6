package fence

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
)

// roleCheckedFor is how long the answer that a role may be a worker's counts for its further connections.
const roleCheckedFor = time.Second

// roles are the roles of the database's workers, and until when they count as checked.
type roles struct {
	db    *Database
	mu    sync.Mutex
	until map[string]time.Time
}

// check is Fence.CheckRole. A backend that has ended, or whose role was dropped, is no danger.
func (r *roles) check(ctx context.Context, user string, pid uint32) error {
	if r.isChecked(user) {
		return nil
	}
	checked := time.Now().Add(roleCheckedFor)
	var may, member bool
	var role string
	err := r.db.Pool().QueryRow(ctx, `SELECT NOT has_table_privilege(a.usesysid, 'pg_authid'::regclass, 'UPDATE') OR has_table_privilege('pg_authid'::regclass, 'UPDATE'),
		pg_get_userbyid(a.usesysid), NOT has_table_privilege(a.usesysid, 'pg_authid'::regclass, 'UPDATE') AND pg_has_role(a.usesysid, n.nspowner, 'MEMBER')
		FROM pg_stat_get_activity($1) a, pg_namespace n WHERE n.nspname = 'fencepost'`, int32(pid)).Scan(&may, &role, &member)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look at backend %d: %w", pid, r.db.Explain(err))
	case !may:
		return &fencing.Refusal{
			SQLState: fencing.StateNoFence,
			Message:  fmt.Sprintf("role %s is a superuser, and a grant could not end its backends", fencing.Quoted(role)),
			Hint:     "Let workers connect as a role that is not a superuser.",
		}
	case member:
		return fencing.MemberRefusal(role)
	}
	r.setChecked(user, checked)
	return nil
}

func (r *roles) isChecked(user string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Before(r.until[user])
}

// setChecked forgets the roles whose time is over, so that it keeps those of the last second.
func (r *roles) setChecked(user string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for u, t := range r.until {
		if time.Now().After(t) {
			delete(r.until, u)
		}
	}
	r.until[user] = until
}
