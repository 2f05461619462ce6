//go:build !fencepost_unfenced

package fencing

// Checking is true in every build except the one with the tag fencepost_unfenced, which
// shows what happens without the fence: there the proxy relays everything, and the
// safety tests must fail.
const Checking = true
