// Package desktest provides elections whose results are set by the test, over the real
// fence of a real Postgres. A Desk replaces the elections of one proxy. A Seat is one
// worker's candidacy, which knows nothing about other workers' grants until it reads
// the record.
package desktest
