//go:build !linux

package pgtest

// dirPrefix begins the names of servers' directories; the process id follows.
const dirPrefix = "fencepost-pg-"

// scratch is the directory for servers' data; "" is the usual place.
func scratch() string { return "" }
