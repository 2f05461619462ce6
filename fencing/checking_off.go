//go:build fencepost_unfenced

package fencing

// Checking is false: this build fences nothing. It exists for make test-unfenced. The
// serve command refuses to start in this build unless FENCEPOST_TEST_UNFENCED=1.
const Checking = false
