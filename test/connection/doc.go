// Package connection contains the tests of a connection's life, from the startup, TLS,
// and authentication to cancellation and the end, with clients and servers that stall or
// send garbage, and with the programs of PostgreSQL.
package connection
