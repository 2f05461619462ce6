// Package refusals has what Fencepost says when it refuses a connection or ends a session for a reason
// other than the fence: the errors that clients get (texts.go), their form on the wire (send.go), and
// the reasons by which refused connections are counted and logged (reason.go, log.go). The errors about
// the fence are in package fencing.
package refusals
