// Package machinetest replays conversations with the machine of package protocol, without
// a server. A transcript is a text file. Its first line says with what the session
// begins; each further line is a message or a remark:
//
//	session version=18 fence=1 worker="w" incarnation="w#1" strings=on encoding="UTF8" status: leader epoch=3 holder="w",3
//	C> Q "select 1"                  the client sends a Query
//	=> Q "EXECUTE …;select 1"        the server gets this for it
//	S> C "SELECT 1"                  the server answers
//	<= C "SELECT 1"                  the client gets this for it
//	= registered                     the registry takes the backend, as the machine asks
//	= status: follower epoch=3 holder="w",3 lapsed
//	= status: leader epoch=4 holder="w",4 guards=1
//	= announced                      the client knows the epoch that it was told
//	= ended                          the machine has ended the session
//
// Lines that begin with "C>", "S>" or "= status" are what happens to the machine, and
// consecutive messages of one side arrive at once. The other lines follow from them.
// The strings of a message come after its type, each without the NUL that ends it, and
// then, as b"…", whatever is not a string. The random part of the checks' names is
// always xxxxxxxxxxxx. The word part stands in the place of a type in front of bytes of
// the client that are no whole message.
//
// In front of its status, a session has "passing" or "read-only" if it is one without a resource,
// and "discards" if the resource discards stale writes.
//
// "go test ./test/protocol -run TestProtocol -record" writes the transcripts of the sessions that
// those tests have with real servers through a proxy, where the machine alone says the same again.
// "go test ./test/differential -run TestKeptScriptsHaveTranscripts -record" writes those of the
// kept random scripts, with Record: a machine without a proxy takes turns with a real server, so
// that the same script always gives the same transcript.
package machinetest
