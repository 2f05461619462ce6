// Package differential contains no code, only tests that compare Fencepost with
// Postgres itself.
//
// A script is what a client sends: messages of the protocol, legal or not, and the
// places where it waits for a reply. Each script is run twice, directly against
// Postgres and through Fencepost as leader. The replies must be the same message by
// message, and so must the contents of the database afterwards. compare_test.go lists
// the permitted differences with their reasons.
//
//   - script_test.go: scripts and their text format;
//   - generate_test.go, units_test.go and phrases_test.go generate random ones from a seed;
//   - client_test.go and steps_test.go run one on a connection of its own, with messages split
//     at random places; a wait ends when the server is known to wait for its client;
//   - database_test.go reads what a script wrote, and restores the initial state;
//     outcome_test.go adds that to what the client received;
//   - pair_test.go runs one both ways, and lines_test.go shows the messages that are compared;
//   - shrink_test.go shrinks a failing one. The result is kept in testdata and run
//     by every run of the tests;
//   - stale_test.go runs the same scripts as workers that are superseded meanwhile, or
//     that never lead: nothing of theirs may be found in the database.
//
// make test runs the same seeds every time. make fuzz-differential runs others, as
// many as requested; SEED repeats a run, and failing scripts are kept in bin/found.
package differential
