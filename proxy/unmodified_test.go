package proxy_test

import (
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
)

// program is a client program of the default server's version: it serves all.
func program(t *testing.T, name string) string {
	t.Helper()
	return pgtest.Shared(t).Program(t, name)
}

// clientDSN names a worker's connection, as a user would write it.
func clientDSN(address, db string) string {
	return "postgres://" + pgtest.App + "@" + address + "/" + db + "?sslmode=prefer&options=-c%20fencepost.resource%3Dr%20-c%20fencepost.worker%3Dw"
}
