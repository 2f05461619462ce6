package pgtest

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// StateOf returns the SQLSTATE of an error, "" for none, and the text of one that does not come
// from a server.
func StateOf(err error) string {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &pg):
		return pg.Code
	default:
		return err.Error()
	}
}
