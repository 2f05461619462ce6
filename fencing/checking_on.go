//go:build !fencepost_unfenced

package fencing

// Checking is true in every build but the one that shows what happens without
// the fence: the tag fencepost_unfenced makes the proxy relay everything, and
// the safety tests must fail then.
const Checking = true
