// Package wire is the wire format of PostgreSQL's protocol, as far as Fencepost writes
// and reads it: message headers with the server's limits on their lengths (PeekFrame,
// PeekClientFrame), the messages that Fencepost sends itself, and the fields of errors.
// It does no I/O and imports nothing of Fencepost's.
package wire
