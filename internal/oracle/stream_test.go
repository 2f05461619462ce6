package oracle

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// long is longer than the proxy's limit for parsing.
var long = "/*" + strings.Repeat("x", 300<<10) + "*/"

// longest is longer than what the observer reads.
var longest = "/*" + strings.Repeat("x", maxText) + "*/"

// recorded is a session that is played to an observer.
type recorded struct {
	name    string
	version int // 15 if it is 0
	proven  bool
	play    func(s *stream)
	want    string // of the complaint; "" for none
}

var streams = []recorded{
	{name: "a cursor WITH HOLD in a text too long for the grammar, bare", play: func(s *stream) {
		s.up(wiretest.Query("declare c cursor with hold for select add('x') " + long))
	}, want: "Query: a query without cover: the server may be idle, uncovered"},
	{name: "the same after a check", play: func(s *stream) {
		s.up(wiretest.Query(guard + "declare c cursor with hold for select add('x') " + long))
	}},
	{name: "back to a savepoint of a text that cannot be read", play: func(s *stream) {
		s.Registered(3)
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.up(wiretest.Query("savepoint a; savepoint b; " + write + longest))
		s.down("C SAVEPOINT", "C SAVEPOINT", "C INSERT 0 1", "Z T")
		s.up(wiretest.Query("rollback to b"))
		s.down("C ROLLBACK", "Z T")
		s.up(wiretest.Query("release a"))
		s.down("C RELEASE", "Z T")
	}},
	{name: "a savepoint that was there before such a text", play: func(s *stream) {
		s.Registered(3)
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.up(wiretest.Query("savepoint a"))
		s.down("C SAVEPOINT", "Z T")
		s.up(wiretest.Query(write + "; " + write + longest))
		s.down("C INSERT 0 1", "C INSERT 0 1", "Z T")
		s.up(wiretest.Query("rollback to a"))
		s.down("C ROLLBACK", "Z T")
	}},
	{name: "a savepoint that nobody has made", play: func(s *stream) {
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.up(wiretest.Query("rollback to a"))
		s.down("C ROLLBACK", "Z T")
	}, want: "the model has lost its way"},
	{name: "SAVEPOINT bare, into a block that was flushed and not synced", play: func(s *stream) {
		s.up(wiretest.Parse("", "begin"), wiretest.Bind("", ""), wiretest.Execute("", 0), wiretest.Flush())
		s.down("1", "2", "C BEGIN")
		s.up(wiretest.Query("SAVEPOINT s"))
	}, want: "Query: LOCK, SAVEPOINT or SET CONSTRAINTS without cover: the server may be in a block"},
	{name: "the same while BEGIN is not answered", play: func(s *stream) {
		s.up(wiretest.Parse("", "begin"), wiretest.Bind("", ""), wiretest.Execute("", 0), wiretest.Query("lock table t"))
	}, want: "Query: LOCK, SAVEPOINT or SET CONSTRAINTS without cover"},
	{name: "read-only mode set inside a savepoint is undone by RELEASE", version: 18, play: func(s *stream) {
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.up(wiretest.Query("EXECUTE " + reading1 + ";savepoint a"))
		s.down("C SELECT 1", "C SAVEPOINT", "Z T")
		s.up(wiretest.Query("release a"), wiretest.Query("select 1")) // it was set before the savepoint, and still holds
		s.down("C RELEASE", "Z T", "C SELECT 1", "Z T")
		s.up(wiretest.Query("rollback"))
		s.down("C ROLLBACK", "Z I")
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.up(wiretest.Query(guard + "savepoint a"))
		s.down("E ZF002", "Z E")
		s.up(wiretest.Query("rollback"))
		s.down("C ROLLBACK", "Z I")
		// As in the leak: the SAVEPOINT entered the block unnoticed, under a
		// registration that has been deleted.
		s.Registered(3)
		s.up(wiretest.Query("begin;savepoint a"))
		s.down("C BEGIN", "C SAVEPOINT", "Z T")
		s.Observer.noted = false
		s.up(wiretest.Query("EXECUTE " + reading1 + ";select 1"))
		s.down("C SELECT 1", "C SELECT 1", "Z T")
		s.up(wiretest.Query("release a"))
		s.down("C RELEASE", "Z T")
		s.up(wiretest.Query("select add('x')"))
	}, want: "Query: a query without cover: the server may be in a block, uncovered, has worked"},
	{name: "COMMIT after RELEASE has undone read-only mode", version: 18, play: func(s *stream) {
		s.Registered(3)
		s.up(wiretest.Query("begin;savepoint a"))
		s.down("C BEGIN", "C SAVEPOINT", "Z T")
		s.Observer.noted = false
		s.up(wiretest.Query("EXECUTE " + reading1 + ";declare c cursor with hold for select add('x')"))
		s.down("C SELECT 1", "C DECLARE CURSOR", "Z T")
		s.up(wiretest.Query("release a"), wiretest.Query("commit"))
	}, want: "Query: COMMIT of a transaction that ran in a read-only mode which was undone"},
	{name: "on 15 RESET undoes read-only mode", play: func(s *stream) {
		s.up(wiretest.Query("begin"), wiretest.Query("EXECUTE "+reading1+";select 1"), wiretest.Query("reset transaction_read_only"), wiretest.Query("select 1"))
	}, want: "Query: a query without cover"},
	{name: "on 16 and later it does not", version: 16, play: func(s *stream) {
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.up(wiretest.Query("EXECUTE " + reading1 + ";select 1"))
		s.down("C SELECT 1", "C SELECT 1", "Z T")
		s.up(wiretest.Query("reset transaction_read_only"))
		s.down("E 25001", "Z E")
		s.up(wiretest.Query("select 1"))
	}},
	{name: "an INSERT without cover", play: func(s *stream) { s.up(wiretest.Query(write)) }, want: "Query: a query without cover"},
	{name: "a Parse without cover", play: func(s *stream) { s.up(wiretest.Parse("", "select '{1}'::d[]")) }, want: "a Parse of a query without cover"},
	{name: "a Bind to what was prepared before", play: func(s *stream) {
		s.up(checked(3, 3), wiretest.Parse("s", write), wiretest.Sync())
		s.down("2", "C SELECT 0", "3", "1", "Z I")
		s.up(wiretest.Bind("", "s"))
	}, want: "a Bind of a query without cover"},
	{name: "a check that was sent covers its batch", play: func(s *stream) {
		s.up(checked(3, 3), wiretest.Run(write), wiretest.Run("select 1"), wiretest.Sync())
	}},
	{name: "and nothing after the Sync", play: func(s *stream) {
		s.up(checked(3, 3), wiretest.Run(write), wiretest.Sync(), wiretest.Run(write))
	}, want: "a Parse of a query without cover"},
	{name: "not even in a block that may not have begun", play: func(s *stream) {
		s.up(wiretest.Run("begin"), checked(3, 3), wiretest.Run(write), wiretest.Sync(), wiretest.Run(write), wiretest.Sync())
	}, want: "a Parse of a query without cover: the server may be idle"},
	{name: "but in one that is answered", play: func(s *stream) {
		s.up(wiretest.Run("begin"), checked(3, 3), wiretest.Run(write), wiretest.Sync())
		s.down("1", "2", "n", "C BEGIN", "2", "C SELECT 0", "3", "1", "2", "n", "C INSERT 0 1", "Z T")
		s.up(wiretest.Run(write), wiretest.Query(write), wiretest.Query("savepoint s"), wiretest.Query("call p()"))
	}},
	{name: "COMMIT ends it", play: func(s *stream) {
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.up(wiretest.Query(guard + write + ";commit;" + write))
		s.down("C SELECT 0", "C INSERT 0 1", "C COMMIT", "C INSERT 0 1", "Z I")
	}, want: "Query: a query without cover"},
	{name: "AND CHAIN too", play: func(s *stream) {
		s.up(wiretest.Query("begin;" + guard + write + ";commit and chain;select 1"))
	}, want: "Query: a query without cover: the server may be in a block"},
	{name: "a check inside a text covers its transaction", play: func(s *stream) {
		s.up(wiretest.Query("begin;" + guard + write + ";commit;" + fencing.InlineCheckSQL(1, "w", "i1", false, 3, 3) + ";" + write))
	}},
	{name: "a check of another fence is none", play: func(s *stream) {
		s.up(wiretest.Query(fencing.InlineCheckSQL(2, "w", "i1", false, 3, 3) + ";" + write))
	}, want: "Query: a query without cover"},
	{name: "a check of another candidacy is none", play: func(s *stream) {
		s.up(wiretest.Query(fencing.InlineCheckSQL(1, "w", "i2", false, 3, 3) + ";" + write))
	}, want: "Query: a query without cover"},
	{name: "a short check with something in front of it is none", play: func(s *stream) {
		s.up(wiretest.Query("begin"), wiretest.Query("EXECUTE "+front1+";"+write))
	}, want: "Query: a query without cover"},
	{name: "and is one with nothing in front", play: func(s *stream) { s.up(wiretest.Query("EXECUTE " + front1 + ";" + write)) }},
	{name: "a choice has the check of all that were chosen", play: func(s *stream) {
		s.names()
		s.up(wiretest.Query("begin"), wiretest.Query("set local fencepost.resource = 'b, a'"), wiretest.Query(chosenCheck("b, a", 1, 2)+";"+write))
		s.down("C BEGIN", "Z T", "C SET", "Z T", "C SELECT 0", "C INSERT 0 1", "Z T")
		s.up(wiretest.Query(write), wiretest.Query("commit"), wiretest.Query(guard+write))
	}},
	{name: "the check of one of two is none", play: func(s *stream) {
		s.names()
		s.up(wiretest.Query("begin; set local fencepost.resource = 'b, a';" + chosenCheck("b, a", 2) + ";" + write))
	}, want: "Query: a query without cover"},
	{name: "nor is that of another choice", play: func(s *stream) {
		s.names()
		s.up(wiretest.Query("begin; set local fencepost.resource = 'b';" + chosenCheck("b", 1) + ";" + write))
	}, want: "Query: a query without cover"},
	{name: "nor that of the startup", play: func(s *stream) {
		s.names()
		s.up(wiretest.Query("begin; set local fencepost.resource = 'b';" + guard + write))
	}, want: "Query: a query without cover"},
	{name: "nor that of a choice for what has chosen nothing", play: func(s *stream) {
		s.names()
		s.up(wiretest.Query("set fencepost.resource = 'b'"))
		s.down("C SET", "Z I")
		s.up(wiretest.Query(chosenCheck("b", 2)+";"+write), wiretest.Query("reset all"))
		s.down("C SELECT 0", "C INSERT 0 1", "Z I", "C RESET", "Z I")
		s.up(wiretest.Query(guard+write), wiretest.Query("set fencepost.resource = 'b'"), wiretest.Sync(), wiretest.Query(guard+write))
	}, want: "Query: a query without cover"},
	{name: "a choice has a name outside ASCII", play: func(s *stream) {
		const name = "\u00e9\u4e2d\U0001f600"
		s.Named(name, 2, "i2")
		s.up(wiretest.Query("set fencepost.resource = '" + name + "'"))
		s.down("C SET", "Z I")
		s.up(wiretest.Query(chosenCheck(name, 2) + ";" + write))
		s.down("C SELECT 0", "C INSERT 0 1", "Z I")
		s.up(wiretest.Query(`begin; set local fencepost.resource = "` + name + `";` + chosenCheck(name, 2) + ";" + write + "; commit"))
		s.down("C BEGIN", "C SET", "C SELECT 0", "C INSERT 0 1", "C COMMIT", "Z I")
		s.up(wiretest.Run("set fencepost.resource = U&'\\00e9'"), wiretest.Sync())
		s.down("1", "2", "n", "C SET", "Z I")
		s.up(wiretest.Query(chosenCheck("\u00e9", 2) + ";" + write))
	}, want: `Query: a query without cover: the server may be in an implicit transaction, uncovered, has chosen "é", ""`}, // there is no such resource
	{name: "the check of a choice refuses a text that cannot be read", play: func(s *stream) {
		s.names()
		s.up(wiretest.Query("set fencepost.resource = 'b'"))
		s.down("C SET", "Z I")
		s.up(wiretest.Query(fencing.ChosenCheckSQL("w", "b", []fencing.Subject{{Fence: 2, Incarnation: "i2"}}) + ";reset all " + longest))
		s.down("E ZF002", "Z I")
		s.up(wiretest.Query(chosenCheck("b", 2) + ";" + write))
	}},
	{name: "and lets none pass", play: func(s *stream) {
		s.names()
		s.up(wiretest.Query("set fencepost.resource = 'b'"))
		s.down("C SET", "Z I")
		s.up(wiretest.Query(chosenCheck("b", 2) + ";reset all " + longest))
		s.down("C SELECT 0", "C RESET", "Z I")
	}, want: "Query: a text that cannot be read, which may go on after the end of the transaction that was checked"},
	{name: "a choice is undone with its batch", play: func(s *stream) {
		s.names()
		s.up(wiretest.Run("set fencepost.resource = 'b'"), wiretest.Run("select 1"), wiretest.Sync())
	}, want: "a Parse of a query without cover"},
	{name: "a SET that has failed chooses nothing", play: func(s *stream) {
		s.names()
		s.up(wiretest.Query("set fencepost.resource = 'b'"))
		s.down("E 57014", "Z I")
		s.up(wiretest.Query(guard + write))
	}},
	{name: "CALL after a check may go on after its end", play: func(s *stream) {
		s.up(checked(3, 3), wiretest.Run("call p()"), wiretest.Sync())
		s.down("2", "C SELECT 0", "3", "1", "2", "n", "C CALL", "Z I")
	}, want: "Execute of CALL or DO, which may go on after the end of the transaction that was checked"},
	{name: "but not if the check refuses", play: func(s *stream) {
		s.up(checked(3, 3), wiretest.Run("call p()"), wiretest.Sync())
		s.down("2", "E ZF001", "Z I")
		s.up(checked(0, 0), wiretest.Run("call p()"), wiretest.Sync(), wiretest.Query(stale+"call p();select from where"))
	}},
	{name: "a text that cannot be read after a check that passes", play: func(s *stream) {
		s.up(wiretest.Query(guard + "no such statement"))
		s.down("C SELECT 0", "C COMMIT")
		s.down("Z I")
	}, want: "Query: a text that cannot be read, which may go on"},
	{name: "a note covers everything", play: func(s *stream) {
		s.Registered(3)
		s.up(wiretest.Query("no such statement"), wiretest.Query("call p()"))
		s.down("C INSERT 0 1", "Z I", "C CALL", "Z I")
		s.Unregistered()
	}},
	{name: "a backslash is what it seems where only the encoding is not", play: func(s *stream) {
		s.up(wiretest.Query("set client_encoding = 'SJIS'"))
		s.down("C SET", "S client_encoding=SJIS", "Z I")
		s.up(wiretest.Query(guard + `select 'a\'; select 2 --'`))
		s.down("C SELECT 0", "C SELECT 1", "C SELECT 1", "Z I")
	}},
	{name: "and after COPY data that nobody reads", play: func(s *stream) {
		s.up(wiretest.Msg('d', []byte("1\n")), wiretest.Msg('c'), wiretest.Query(guard+`select 'a\'; select 2 --'`))
		s.down("C SELECT 0", "C SELECT 1", "C SELECT 1", "Z I")
	}},
	{name: "a Sync and a Flush with a body are errors", play: func(s *stream) {
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.up(wiretest.Msg('S', []byte("x")))
		s.down("E 08P01", "Z E")
		s.up(wiretest.Query("rollback"))
		s.down("C ROLLBACK", "Z I")
		s.up(wiretest.Msg('H', []byte("x")), wiretest.Run(write), wiretest.Sync())
		s.down("E 08P01", "Z I")
		s.up(wiretest.Query("select 1"))
	}, want: "Query: a query without cover"},
	{name: "until it is deleted", play: func(s *stream) {
		s.Registered(3)
		s.up(wiretest.Query("call p()"))
		s.down("C CALL", "Z I")
		s.Unregistered()
		s.up(wiretest.Query("call p()"))
	}, want: "Query: CALL or DO without cover"},
	{name: "it must not be deleted too early", play: func(s *stream) {
		s.Registered(3)
		s.up(wiretest.Query("call p()"))
		s.Unregistered()
	}, want: "the note is deleted while a message 'Q' that rests on it"},
	{name: "nor while its block goes on", play: func(s *stream) {
		s.Registered(3)
		s.up(wiretest.Query("begin;no such statement"))
		s.down("C BEGIN", "C INSERT 0 1", "Z T")
		s.Unregistered()
	}, want: "the note is deleted while a transaction that it covers may go on"},
	{name: "a note under an epoch that was granted to another", play: func(s *stream) {
		s.AskLedger(func(int64) (string, error) { return "i2", nil })
		s.Registered(3)
	}, want: "the backend is noted under epoch 3, which was granted to \"i2\" and not to this candidacy, \"i1\""},
	{name: "what runs nothing goes bare", play: func(s *stream) {
		s.up(wiretest.Query("set a.b = 'x'"), wiretest.Query("show work_mem;listen x"), wiretest.Query(""), wiretest.Run("begin"), wiretest.Run("commit"), wiretest.Sync())
	}},
	{name: "LOCK alone outside a block too", play: func(s *stream) { s.up(wiretest.Query("lock table t")) }},
	{name: "but not with others", play: func(s *stream) { s.up(wiretest.Query("lock table t;select 1")) }, want: "Query: LOCK, SAVEPOINT"},
	{name: "what goes into a failed block", play: func(s *stream) {
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.up(wiretest.Query(guard + "select 1/0"))
		s.down("C SELECT 0", "E 22012", "Z E")
		s.up(wiretest.Query(write), wiretest.Query("lock table t"), wiretest.Run(write), wiretest.Sync())
	}},
	{name: "a refusal in a failed block", play: func(s *stream) {
		refuse := fencing.RefuseSQL(1, "w", "i1", 3, 3, true)
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.up(wiretest.Query(refuse + ";" + write))
		s.down("E ZF002", "Z E")
		s.up(wiretest.Query(refuse+";"+write), wiretest.Parse("r", refuse), wiretest.Bind("", "r"), wiretest.Execute("", 0), wiretest.Run(write), wiretest.Sync())
	}},
	{name: "a text that is skipped changes no names", play: func(s *stream) {
		s.up(checked(0, 0), wiretest.Run(write))
		s.down("2", "E ZF002")
		s.up(wiretest.Query("prepare U&'\\zzzz'"), wiretest.Parse(reading1, write), wiretest.Sync(), wiretest.Query("EXECUTE "+reading1+";select 1"))
	}},
	{name: "a text after a check that cannot pass changes no names", play: func(s *stream) {
		s.up(wiretest.Query("EXECUTE "+prepared1+"(0,0);prepare U&'\\zzzz';select 1"), wiretest.Query("EXECUTE "+reading1+";select 1"))
	}},
	{name: "nor does one that is not about them", play: func(s *stream) {
		s.up(wiretest.Query(guard+"select '\u00e9' from;select 1"), wiretest.Query("EXECUTE "+reading1+";select 1"))
	}},
	{name: "but another may", play: func(s *stream) {
		s.up(wiretest.Query("EXECUTE "+prepared1+"(3,3);prepare U&'\\zzzz';select 1"), wiretest.Query("EXECUTE "+reading1+";select 1"))
	}, want: "Query: a query without cover"},
	{name: "our own messages change no setting", play: func(s *stream) {
		s.up(wiretest.Parse("again", fencing.CheckSQL(1, "w", "i1", false)), wiretest.Sync(), wiretest.Query(guard+`insert into t values ('\'); --')`))
		s.down("1", "Z I", "C SELECT 0", "C INSERT 0 1", "Z I")
	}},
	{name: "a check where backslashes escape", play: func(s *stream) {
		s.down("S standard_conforming_strings=off")
		inline := fencing.InlineCheckSQL(1, "w", "i1", false, 3, 3)
		s.up(wiretest.Query(inline + `;select 'a\', ' , add(1) --'`))
		s.down("C SELECT 0", "C SELECT 1", "Z I")
		s.up(wiretest.Query("begin;" + inline + `;select 'a\', ' , add(1) --'`))
	}},
	{name: "what only begins like one", play: func(s *stream) {
		s.down("S standard_conforming_strings=off")
		s.up(wiretest.Query(`SELECT fencepost.refuse('\'' ; commit; ', '\'');` + write))
	}, want: "Query: a query without cover"},
	{name: "but not after ROLLBACK TO", version: 18, play: func(s *stream) {
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.up(wiretest.Query("EXECUTE " + reading1 + ";savepoint a"))
		s.down("C SELECT 1", "C SAVEPOINT", "Z T")
		s.up(wiretest.Query(write))
		s.down("E 25006", "Z E")
		s.up(wiretest.Query("rollback to a"), wiretest.Query("notify x"))
	}, want: "Query: a statement that may write without cover: the server may be in a block, read-only"},
	{name: "NOTIFY in read-only mode", play: func(s *stream) { s.up(wiretest.Query("EXECUTE " + reading1 + ";notify x")) }, want: "Query: a statement that may write without cover"},
	{name: "a read in read-only mode", play: func(s *stream) { s.up(readOnlyRun(), wiretest.Run("select 1"), wiretest.Sync()) }},
	{name: "a SELECT where reads are proven", proven: true, play: func(s *stream) { s.up(wiretest.Query("select 1")) }},
	{name: "its plan too", proven: true, play: func(s *stream) { s.up(wiretest.Query("explain (costs off) select 1")) }},
	{name: "but no EXPLAIN ANALYZE", proven: true, play: func(s *stream) {
		s.up(wiretest.Query("explain (analyze) select 1"))
	}, want: "Query: a query without cover"},
	{name: "but not in a block", proven: true, play: func(s *stream) {
		s.up(wiretest.Query("begin"), wiretest.Query("select 1"))
	}, want: "Query: a query without cover"},
	{name: "a backslash while strings may be read otherwise", play: func(s *stream) {
		s.down("S standard_conforming_strings=off")
		s.up(wiretest.Query(`set a.b = 'x\'; select add(1) --'`)) // one statement
		s.down("C SET", "Z I")
		s.up(wiretest.Query(`set a.b = 'x\\'; select add(1) --'`))
	}, want: "Query: a query without cover"},
	{name: "a backslash while that setting may be changing", play: func(s *stream) {
		s.up(wiretest.Query("set standard_conforming_strings = off"), wiretest.Query(`set a.b = 'x\'; select add(1) --'`))
	}, want: "Query: a text that cannot be read without cover"},
	{name: "a byte outside ASCII in an encoding that hides quotes", play: func(s *stream) {
		s.down("S client_encoding=SJIS")
		s.up(wiretest.Query("set a.b = '\x83\x5c'"))
	}, want: "Query: a text that cannot be read without cover"},
	{name: "after an error the server skips up to the Sync", play: func(s *stream) {
		s.up(wiretest.Parse("", "nonsense"), wiretest.Flush())
	}, want: "a Parse of a text that cannot be read without cover"},
	{name: "a name is another's once something has run", play: func(s *stream) {
		s.up(wiretest.Parse("s", "begin"), wiretest.Bind("", "s"), wiretest.Execute("", 0), wiretest.Sync())
		s.down("1", "2", "C BEGIN", "Z T")
		s.up(wiretest.Query("EXECUTE "+prepared1+"(3,3);select f()"), wiretest.Query("commit"))
		s.down("C SELECT 0", "C SELECT 1", "Z T", "C COMMIT", "Z I")
		s.up(wiretest.Bind("", "s"))
	}, want: "a Bind of a query without cover"},
	{name: "or once something was bound", play: func(s *stream) {
		s.up(readOnlyRun(), wiretest.Parse("s", "begin"), wiretest.Parse("x", "select $1::d"), wiretest.Bind("p", "x", "v"), wiretest.Sync(), wiretest.Bind("", "s"))
	}, want: "a Bind of a query without cover"},
	{name: "an empty text leaves the pipeline of 18 as it is", version: 18, play: func(s *stream) {
		s.up(checked(3, 3), wiretest.Run("select 1"), wiretest.Run(""), wiretest.Query("set a.b = 1"))
		s.down("2", "C SELECT 0", "3", "1", "2", "n", "C SELECT 1", "1", "2", "n", "I", "C SET", "Z T")
	}},
	{name: "Describe in a failed block", play: func(s *stream) {
		s.up(wiretest.Parse("s", "set a.b = 1"), wiretest.Sync(), wiretest.Query("begin"))
		s.down("1", "Z I", "C BEGIN", "Z T")
		s.up(wiretest.Query(guard + "select 1/0"))
		s.down("C SELECT 0", "E 22012", "Z E")
		s.up(wiretest.Describe('S', "s"), wiretest.Sync())
		s.down("t", "n", "Z E")
	}},
	{name: "a Sync among COPY data that fail is answered by no error", play: func(s *stream) {
		s.up(wiretest.Query(guard+"copy t from stdin"), wiretest.CopyData("1\n"), wiretest.Sync(), wiretest.CopyData("bad\n"))
		s.Registered(3)
		s.up(wiretest.Run("call nope()"), wiretest.Sync())
		s.down("C SELECT 0", "G")
		s.Received(wiretest.Msg('E', []byte("SERROR\x00VERROR\x00C22P02\x00WCOPY t, line 2\x00\x00")))
		s.down("Z I", "E 42883", "Z I")
		s.Unregistered()
	}},
	{name: "a Sync behind a COPY that is canceled before it has read anything", play: func(s *stream) {
		s.up(checked(3, 3), wiretest.Run("copy t from stdin"), wiretest.Sync(), wiretest.CopyDone(), wiretest.Sync())
		s.down("2", "C SELECT 0", "3", "1", "2", "n", "G")
		s.Received(wiretest.Msg('E', []byte("SERROR\x00VERROR\x00C57014\x00WCOPY t, line 0\x00RProcessInterrupts\x00\x00")))
		s.down("Z I", "Z I")
	}},
	{name: "SQL EXECUTE of a prepared COMMIT in a failed block", play: func(s *stream) {
		s.up(wiretest.Parse("s1", "commit"), wiretest.Sync(), wiretest.Query("begin"))
		s.down("1", "Z I", "C BEGIN", "Z T")
		s.up(wiretest.Query(guard + "select nothing"))
		s.down("E 42703", "Z E")
		s.up(wiretest.Query("execute s1"))
		s.down("E 25P02", "Z E")
	}},
	{name: "SQL EXECUTE of a prepared COMMIT ends the transaction with the text", play: func(s *stream) {
		s.up(wiretest.Parse("s1", "commit"), wiretest.Sync(), wiretest.Query(guard+"execute s1;"+write))
		s.down("1", "Z I", "C SELECT 0", "C COMMIT", "C INSERT 0 1", "Z I")
		s.up(wiretest.Query(write))
	}, want: "Query: a query without cover: the server may be idle"},
	{name: "SQL EXECUTE of a prepared COMMIT ends the transaction with the batch", play: func(s *stream) {
		s.up(wiretest.Parse("s1", "commit"), wiretest.Sync(), wiretest.Query("begin"))
		s.down("1", "Z I", "C BEGIN", "Z T")
		s.up(checked(3, 3), wiretest.Run("execute s1"), wiretest.Run(write), wiretest.Sync())
		s.down("2", "C SELECT 0", "3", "1", "2", "n", "C COMMIT", "1", "2", "n", "C INSERT 0 1", "Z I")
		s.up(wiretest.Query(write))
	}, want: "Query: a query without cover: the server may be idle"},
	{name: "a statement that prepares its own name is still known", play: func(s *stream) {
		s.up(checked(3, 3), wiretest.Parse("s1", "prepare s1 as "+write), wiretest.Sync())
		s.down("2", "C SELECT 0", "3", "1", "Z I")
		for range 2 {
			s.up(checked(3, 3), wiretest.Bind("", "s1"), wiretest.Execute("", 0), wiretest.Sync())
			s.down("2", "C SELECT 0", "3", "2", "E 42P05", "Z I")
		}
	}},
	{name: "PREPARE of the name of a check", play: func(s *stream) {
		s.up(wiretest.Query(guard + "prepare " + prepared1 + " as " + write))
		s.down("C SELECT 0", "C PREPARE", "Z I")
		s.up(wiretest.Query(guard + write))
	}, want: "Query: a query without cover"},
	{name: "two Syncs among COPY data, and one after them that is answered", play: func(s *stream) {
		s.up(wiretest.Query(guard+"copy t from stdin"), wiretest.CopyData("1\n"), wiretest.Sync(), wiretest.Sync(), wiretest.CopyData("bad"), wiretest.CopyDone(), wiretest.Sync(),
			wiretest.Parse("", "listen ch"), wiretest.Sync())
		s.down("C SELECT 0", "G")
		s.Received(wiretest.Msg('E', []byte("SERROR\x00VERROR\x00C22P02\x00WCOPY t, line 2\x00\x00")))
		s.down("Z I", "Z I", "1", "Z I")
		s.up(wiretest.Query(write))
	}, want: "Query: a query without cover: the server may be idle"},
	{name: "a Sync with a body after COPY data that fail is answered by an error", play: func(s *stream) {
		s.up(wiretest.Query(guard+"copy t from stdin (format binary)"), wiretest.CopyData("bad\n"))
		s.down("G")
		s.up(wiretest.Msg('S', []byte("x")))
		s.down("E 22P04", "Z I", "E 08P01", "Z I")
		s.up(wiretest.Query("delete from t"))
	}, want: "Query: a query without cover"},
	{name: "a Sync that was COPY data, and one after that data", play: func(s *stream) {
		s.up(checked(3, 3), wiretest.Run("copy t from stdin (format binary)"), wiretest.Sync(), wiretest.CopyData("bad\n"), wiretest.CopyDone(), wiretest.Sync())
		s.down("2", "C SELECT 0", "3", "1", "2", "n", "G", "E 22P04", "Z I")
		s.Registered(3)
		s.up(wiretest.Query("call nope()"))
		s.down("E 42883", "Z I")
		s.Unregistered()
	}},
	{name: "a portal that ended with its transaction, in a later block", play: func(s *stream) {
		s.up(wiretest.Parse("s", "show all"), wiretest.Bind("c", "s"), wiretest.Query("set a.b = 1"), wiretest.Query("begin"), wiretest.Execute("c", 0))
	}},
	{name: "a Parse that was skipped takes nothing from a later one", version: 18, play: func(s *stream) {
		s.up(readOnlyRun(), wiretest.Parse("", "nonsense"), wiretest.Parse("", "select 2"), wiretest.Sync(), wiretest.Query("set a.b = 1"),
			wiretest.Msg('C', []byte("S\x00")), wiretest.Parse("", "set a.b = 2"), wiretest.Sync())
		s.down("2", "C SELECT 1", "3", "E 42601", "Z I", "C SET", "Z I", "3", "1", "Z I")
		s.up(wiretest.Bind("", ""), wiretest.Execute("", 0), wiretest.Sync())
	}},
	{name: "an error is known, and what is skipped needs nothing", play: func(s *stream) {
		s.up(checked(3, 3), wiretest.Parse("", "nonsense"), wiretest.Flush())
		s.down("2", "C SELECT 0", "3", "E 42601")
		s.up(wiretest.Query(write), wiretest.Run(write), wiretest.Sync())
		s.down("Z I")
	}},
	{name: "a function call needs a note outside a block", play: func(s *stream) { s.up(wiretest.Msg('F', []byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 0})) }, want: "Query: a statement that may write without cover"},
	{name: "18 goes on with the batch's transaction in a Query", version: 18, play: func(s *stream) {
		s.up(checked(3, 3), wiretest.Run(write), wiretest.Query(write))
		s.down("2", "C SELECT 0", "3", "1", "2", "n", "C INSERT 0 1", "C INSERT 0 1", "Z T")
		s.up(wiretest.Sync())
		s.down("Z I")
	}},
	{name: "COPY data goes with its statement", play: func(s *stream) {
		s.up(wiretest.Query(guard + "copy t from stdin"))
		s.down("C SELECT 0", "G")
		s.up(wiretest.CopyData("1\n"), wiretest.Sync(), wiretest.CopyDone())
		s.down("C COPY 1", "Z I")
		s.up(wiretest.Query(guard + write))
		s.down("C SELECT 0", "C INSERT 0 1", "Z I")
	}},
	{name: "PREPARE of a name outside ASCII behind a check", play: func(s *stream) {
		s.up(checked(3, 3), wiretest.Run("prepare \"\u00e4\" as "+write), wiretest.Sync())
		s.down("2", "C SELECT 0", "3", "1", "2", "n", "C PREPARE", "Z I")
	}},
	{name: "EXECUTE of it behind a check", play: func(s *stream) {
		s.up(checked(3, 3), wiretest.Run("execute \"\u00e4\""), wiretest.Sync())
		s.down("2", "C SELECT 0", "3", "1", "2", "n", "C INSERT 0 1", "Z I")
	}},
	{name: "PREPARE of it bare", play: func(s *stream) {
		s.up(wiretest.Run("set a.b = 1"), wiretest.Run("prepare \"\u00e4\" as "+write), wiretest.Sync())
	}, want: "a Parse of a query without cover"},
	{name: "PREPARE of a quoted name frees a name of Fencepost's", play: func(s *stream) {
		s.up(wiretest.Run("set a.b = 1"), checked(3, 3), wiretest.Run("prepare \""+reading1+"\" as insert into t values ('\u00e4')"), wiretest.Sync())
		s.down("1", "2", "n", "C SET", "2", "C SELECT 0", "3", "1", "2", "n", "C PREPARE", "Z I")
		s.up(wiretest.Query("EXECUTE " + reading1 + ";select 1"))
	}, want: "Query: a query without cover"},
	{name: "what is sent behind a verdict", play: func(s *stream) {
		s.asks("C SELECT 0")
		s.up(wiretest.Run(write), wiretest.Sync())
		s.down("1", "2", "n", "C INSERT 0 1", "Z I")
		s.asks("C SELECT 1")
		s.up(wiretest.Parse("", write), wiretest.Bind("", ""), wiretest.Describe('P', ""), wiretest.Run(fencing.DiscardedSQL), wiretest.Sync())
		s.down("1", "2", "n", "1", "2", "T", "C SELECT 0", "Z I")
	}},
	{name: "a discarded write is executed", play: func(s *stream) {
		s.asks("C SELECT 1")
		s.up(wiretest.Run(write))
	}, want: "Execute of the execution of a write that is to be discarded"},
	{name: "a discarded write is executed as a Query", play: func(s *stream) {
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.asks("C SELECT 1")
		s.up(wiretest.Query(write))
	}, want: "Query: the execution of a write that is to be discarded"},
	{name: "a write that does not wait for the verdict", play: func(s *stream) {
		s.up(wiretest.Parse(asking1, fencing.VerdictSQL(1, "w", "i1", false)), asked(3, 3), wiretest.Run(write))
	}, want: "Execute of the execution of a write that is to be discarded"},
	{name: "RELEASE undoes a verdict", version: 18, play: func(s *stream) {
		s.up(wiretest.Query("begin"))
		s.down("C BEGIN", "Z T")
		s.up(wiretest.Query("EXECUTE " + reading1 + ";savepoint a; rollback to a"))
		s.down("C SELECT 1", "C SAVEPOINT", "C ROLLBACK", "Z T")
		s.asks("C SELECT 1")
		s.up(wiretest.Query("rollback"))
		s.down("C ROLLBACK", "Z I")
		s.up(wiretest.Run(write))
	}, want: "a Parse of a query without cover"},
	{name: "two-phase commit", play: func(s *stream) { s.up(wiretest.Query(guard + "prepare transaction 'x'")) }, want: "Query: two-phase commit"},
}

// TestStreams passes recorded sessions to an observer: it must complain about leaks and
// about nothing else.
func TestStreams(t *testing.T) {
	t.Parallel()
	for _, c := range slices.Concat(streams, portalStreams) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			version := c.version
			if version == 0 {
				version = 15
			}
			s := newStream(Facts{Version: version, Fenced: true, ProvenReads: c.proven})
			c.play(s)
			switch {
			case c.want == "" && len(s.complaints) > 0:
				t.Errorf("unfounded complaint: %s", s.complaints[0])
			case c.want != "" && len(s.complaints) != 1:
				t.Errorf("complaints %q, want one: %s", s.complaints, c.want)
			case c.want != "" && !strings.HasPrefix(s.complaints[0], "oracle: "+c.want):
				t.Errorf("complaint %s\nwant %s", s.complaints[0], c.want)
			}
			if (s.Sent(nil) != nil) != (c.want != "") {
				t.Error("messages after a complaint are not refused")
			}
		})
	}
}

// TestPieces checks that the observer sees the same however the bytes are split.
func TestPieces(t *testing.T) {
	t.Parallel()
	all := bytes.Join([][]byte{checked(3, 3), wiretest.Run(write), wiretest.Sync(), wiretest.Flush(), wiretest.Query(write)}, nil)
	for size := range 40 {
		s := newStream(Facts{Version: 15, Fenced: true})
		for i := 0; i < len(all); i += size + 1 {
			if len(s.complaints) > 0 {
				t.Errorf("pieces of %d bytes: a complaint before the last message is complete", size+1)
			}
			s.up(all[i:min(i+size+1, len(all))])
		}
		if len(s.complaints) != 1 {
			t.Errorf("pieces of %d bytes: complaints %q", size+1, s.complaints)
		}
	}
}
