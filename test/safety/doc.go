// Package safety contains the tests of what the proxy promises about writes, with
// elections that the tests control (package fixture):
//
//   - one file per kind of case, such as stale_test.go (a superseded worker writes) and
//     told_test.go (a worker writes before it was told of its epoch);
//   - paths: the list of ways to write (writes_paths_test.go), each as a leader, as a
//     superseded worker and as one that never led;
//   - the table of writes (writes_table_test.go), which combines them with transports,
//     texts and standings; docs/writes.md says how to run a part of it.
package safety
