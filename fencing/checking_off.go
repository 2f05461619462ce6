//go:build fencepost_unfenced

package fencing

// Checking is false: this build fences nothing. It exists for make
// test-unfenced; serve refuses to start in it unless FENCEPOST_TEST_UNFENCED=1.
const Checking = false
