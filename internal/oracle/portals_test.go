package oracle

import "github.com/fencepost/fencepost/internal/wiretest"

// portalStreams are about what an Execute runs.
var portalStreams = []recorded{
	{name: "what is skipped after an Execute of who knows what", play: func(s *stream) {
		s.Registered(3)
		s.up(wiretest.Bind("c", "\u00e9"), wiretest.Execute("c", 0))
		s.down("2", "E 34000")
		s.up(wiretest.Execute("d", 0), wiretest.Sync())
		s.down("Z I")
	}},
	{name: "a portal ends with its transaction", play: func(s *stream) {
		s.up(checked(0, 0), wiretest.Bind("c", "\u00e9"), wiretest.Sync(), wiretest.Query("begin"))
		s.up(readOnlyRun(), wiretest.Parse("", "select 1"), wiretest.Bind("c", ""), wiretest.Sync(), readOnlyRun(), wiretest.Execute("c", 0))
	}},
	{name: "but lives in its block", play: func(s *stream) {
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.up(readOnlyRun(), wiretest.Bind("c", "\u00e9"), wiretest.Sync())
		s.down("2", "C SELECT 1", "3", "2", "Z T")
		s.up(wiretest.Execute("c", 0))
	}, want: "Execute of a text that cannot be read"},
	{name: "but not if its Bind has failed", play: func(s *stream) {
		s.up(wiretest.Query("begin"), checked(0, 0), wiretest.Sync())
		s.down("C BEGIN", "Z T", "2", "E ZF002", "Z E")
		s.up(wiretest.Bind("c", "\u00e9"), wiretest.Bind("d", "\u00e9"), wiretest.Sync())
		s.down("E 25P02", "Z E")
		s.up(wiretest.Execute("c", 0), wiretest.Execute("d", 0), readOnlyRun(), wiretest.Execute("c", 0), wiretest.Execute("d", 0))
	}},
	{name: "and outside a transaction there is none", play: func(s *stream) {
		s.up(readOnlyRun(), wiretest.Run("select 1"), wiretest.Run("rollback"), wiretest.Execute("", 0))
	}},
	{name: "a BEGIN whose name SQL has taken begins no block", play: func(s *stream) {
		s.executesTaken("begin")
		s.down("D", "C SELECT 1", "2", "C SELECT 0", "3", "1", "2", "n", "C CALL")
	}, want: "Execute of CALL or DO, which may go on after the end of the transaction that was checked"},
	{name: "its tag says that it has begun one", play: func(s *stream) {
		s.executesTaken("begin")
		s.down("C BEGIN", "2", "C SELECT 0", "3", "1", "2", "n", "C CALL", "Z T")
	}},
	{name: "a COMMIT whose name SQL has taken ends nothing", play: func(s *stream) {
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.executesTaken("commit")
		s.down("D", "C SELECT 1", "2", "C SELECT 0", "3", "1", "2", "n", "C CALL", "Z T")
	}},
	{name: "an Execute behind a Bind that has failed runs nothing in a failed block", play: func(s *stream) {
		s.up(wiretest.Query("begin"), checked(3, 3), wiretest.Parse("", "select 1/0"), wiretest.Bind("", ""), wiretest.Sync())
		s.down("C BEGIN", "Z T", "2", "C SELECT 0", "3", "1", "E 22012", "Z E")
		s.up(wiretest.Execute("", 0), wiretest.Run("commit"), wiretest.Run("begin"), wiretest.Sync())
		s.down("I", "1", "2", "n", "C ROLLBACK", "1", "2", "n", "C BEGIN", "Z T")
	}},
}

// executesTaken binds a statement to a portal, gives the portal's name to a cursor, executes what has the
// name then, and calls a procedure behind a check.
func (s *stream) executesTaken(sql string) {
	s.up(checked(3, 3), wiretest.Parse("c1", sql), wiretest.Bind("p1", "c1"), wiretest.Run("close p1"), wiretest.Run("declare p1 cursor with hold for select 1"),
		wiretest.Execute("p1", 0), checked(3, 3), wiretest.Run("call f()"), wiretest.Sync())
	s.down("2", "C SELECT 0", "3", "1", "2", "1", "2", "n", "C CLOSE CURSOR", "1", "2", "n", "C DECLARE CURSOR")
}
