// Package differential holds no code, only tests that compare Fencepost with
// Postgres itself.
//
// A script is what a client sends: messages of the protocol, legal and not, and
// the places where it waits for an answer. Each script is played twice, against
// Postgres and through Fencepost as leader, and what comes back must be the same
// message by message, and so must what is in the database afterwards. What is
// allowed to differ, with its reason, is in compare_test.go.
//
//   - script_test.go: scripts, and the text they are written in;
//   - generate_test.go and phrases_test.go make random ones from a seed;
//   - play_test.go plays one on a connection of its own, cut at random places; a
//     wait ends when the server is known to wait for its client;
//   - room_test.go looks at what a script wrote, and makes that new again;
//   - shrink_test.go makes a failing one small. What it leaves is kept in
//     testdata, and played by every run of the tests;
//   - stale_test.go plays the same scripts by workers that are superseded
//     meanwhile, or never lead: nothing of theirs may be found in the database.
//
// make test plays the same seeds every time. make fuzz-differential plays others, as
// many as asked for; SEED repeats a run, and what it finds is kept in bin/found.
package differential
