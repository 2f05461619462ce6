// Package safety contains the tests of what the proxy promises about writes, with
// elections that the tests control (package fixture):
//
//   - one file per kind of case, such as stale_test.go (a superseded worker writes) and
//     announced_test.go (a worker writes before its epoch was announced to it);
//   - paths: the list of ways to write (writes_paths_test.go), each as a superseded worker
//     and as one that does not lead; docs/writes.md describes them.
package safety
