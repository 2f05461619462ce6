// Package desktest gives tests of the proxy elections whose outcome they say,
// over the real fence of a real Postgres: a Desk stands for the elections of one
// proxy, and a Seat for one worker's candidacy, which knows nothing of other
// workers' grants until it looks.
package desktest
