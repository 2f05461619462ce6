//go:build unix && !linux

package netloop

// implementations are the ways to open a loop.
var implementations = map[string]func() (Loop, error){"plain": newLoop}
