// Package unpinged saves the question whether an idle connection of a pool is still there, for statements
// that are sent again and again and that may run twice. A pool whose ShouldPing asks Marked sends them
// without it, and Run repeats a statement whose connection has turned out to be broken, with it.
package unpinged

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

type mark struct{}

// Marked reports whether a connection for this context is not to be pinged.
func Marked(ctx context.Context) bool { return ctx.Value(mark{}) != nil }

// Run calls statement, whose context is marked. If its connection is broken, it calls it once more.
func Run(ctx context.Context, statement func(ctx context.Context) error) error {
	err := statement(context.WithValue(ctx, mark{}, true))
	if err == nil || ctx.Err() != nil || answered(err) {
		return err
	}
	return statement(ctx)
}

// answered reports whether err is what the server said of a statement, and not of the connection.
func answered(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && !strings.HasPrefix(pg.Code, "57P")
}
