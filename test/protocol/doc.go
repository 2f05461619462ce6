// Package protocol contains the tests of what a client is told: the same messages are
// sent to Postgres and, as a leader, through the proxy, and the replies are compared.
//
//   - script_test.go sends scripts and compares the replies;
//   - transcript_test.go and page_test.go check docs/protocol.md and transcripts.md; with
//     -rewrite, the latter is written.
package protocol
