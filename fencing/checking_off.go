//go:build fencepost_unfenced

package fencing

// Checking is false: this build fences nothing. It exists for make
// test-unfenced, and serve refuses to start in it.
const Checking = false
