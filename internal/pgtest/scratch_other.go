//go:build !linux

package pgtest

// dirPrefix is the prefix of servers' directory names; the process id follows.
const dirPrefix = "fencepost-pg-"

// scratch returns the directory for servers' data; "" is the default directory.
func scratch() string { return "" }
