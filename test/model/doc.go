// Package model contains a model of a PostgreSQL server and tests that run the protocol
// core of the proxy against it, without servers: random programs of messages, replies and
// changes of the lease, judged by the observer of package oracle.
package model
