//go:build linux && !fencepost_plainnet

package netloop

func newLoop() (Loop, error) { return newEpollLoop() }
