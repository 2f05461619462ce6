// Package owner finds out whether the schema fencepost of a database is Fencepost's own.
//
// Whoever may create a schema in a database can make one of that name. What its views, triggers,
// defaults and policies call runs with the rights of the role that uses them, and SET ROLE does not
// prevent that, because they may reset it. So nothing in the schema is named before its owner is known.
package owner

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Owner is the role that owns the schema.
type Owner struct {
	Role string
	// Usable means that the role that asks has the rights of the owner.
	Usable bool
	// Lacks are the roles of which a control role must be a member, and the owner is not.
	Lacks []string
}

// ErrNoSchema means that the database has no schema fencepost.
var ErrNoSchema = errors.New("this database has no schema fencepost: run fencepost migrate --dsn DSN")

// ForeignError means that the schema belongs to another role than the one that asks, and either that this role lacks
// rights without which no role is a control role, or that the one that asks must have its rights and has not.
// Migrations grant these rights to the control role.
type ForeignError struct {
	Role  string   // the owner
	Lacks []string // the roles of which it would have to be a member
}

func (e *ForeignError) Error() string { return e.Problem() + ". " + e.Remedy() }

// Problem says what is wrong.
func (e *ForeignError) Problem() string {
	why := "whose rights the role that asks does not have, as it is no member or does not inherit them"
	if len(e.Lacks) > 0 {
		why = "which is no control role, because it lacks " + strings.Join(e.Lacks, " and ")
	}
	return fmt.Sprintf("the schema fencepost belongs to role %q, %s: nothing in the schema was used, "+
		"since that could run what role %q has put there with the rights of whoever uses it", e.Role, why, e.Role)
}

// Remedy says what to do about it.
func (e *ForeignError) Remedy() string {
	quoted := pgx.Identifier{e.Role}.Sanitize()
	is := "connect as it"
	if len(e.Lacks) > 0 {
		is = fmt.Sprintf("run fencepost migrate --dsn DSN as a superuser, which loses nothing, or: GRANT %s TO %s", strings.Join(e.Lacks, ", "), quoted)
	}
	return fmt.Sprintf("If %s is the control role, %s. If the schema is not Fencepost's, drop it as a superuser (DROP SCHEMA fencepost CASCADE) before you run fencepost migrate --dsn DSN", quoted, is)
}

// Querier is a connection, a pool or a transaction. Its search_path must begin with pg_catalog.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// The role that has logged in counts, because the owner of a database can set another one for all its sessions by ALTER
// DATABASE SET role.
const ownerSQL = `SELECT pg_get_userbyid(n.nspowner)::text, pg_has_role(n.nspowner, 'USAGE'), pg_get_userbyid(n.nspowner) = session_user, array_remove(ARRAY[
		CASE WHEN NOT pg_has_role(n.nspowner, 'pg_signal_backend', 'USAGE') THEN 'pg_signal_backend' END,
		CASE WHEN NOT pg_has_role(n.nspowner, 'pg_read_all_stats', 'USAGE') THEN 'pg_read_all_stats' END], NULL)
	FROM pg_namespace n WHERE n.nspname = 'fencepost'`

// Of returns the owner of the schema fencepost, which is the role that asks or one with the rights of a control role.
// Otherwise it fails with ErrNoSchema or a *ForeignError.
func Of(ctx context.Context, q Querier) (Owner, error) {
	var o Owner
	var mine bool
	err := q.QueryRow(ctx, ownerSQL).Scan(&o.Role, &o.Usable, &mine, &o.Lacks)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Owner{}, ErrNoSchema
	case err != nil:
		return Owner{}, fmt.Errorf("look for the owner of the schema fencepost: %w", err)
	case !mine && len(o.Lacks) > 0:
		return Owner{}, &ForeignError{Role: o.Role, Lacks: o.Lacks}
	default:
		return o, nil
	}
}

// Mine is Of for a role that needs the rights of the owner, like the control role.
func Mine(ctx context.Context, q Querier) (Owner, error) {
	o, err := Of(ctx, q)
	if err == nil && !o.Usable {
		return Owner{}, &ForeignError{Role: o.Role}
	}
	return o, err
}
