package model

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// phrases are the statements that the clients of the model send.
var phrases = []string{
	"insert into t values (1)", "begin", "commit", "rollback", "select 1", "savepoint a", "rollback to a", "release a",
	"vacuum t", "do $$begin commit; end$$", "call p()", "prepare x as insert into t values (2)", "execute x", "deallocate x", "deallocate all",
	"discard all", "copy t from stdin", "copy t to stdout", "select wipe()", "select nothing", "select 1/0", "selec", "select 'open",
	"", "commit and chain", "rollback and chain", "begin isolation level repeatable read", "prepare transaction 'g'", "commit prepared 'g'",
	"lock table t", "declare c cursor for select 1", "declare c cursor with hold for select 1", "fetch c", "close c",
	"set standard_conforming_strings = off", "set standard_conforming_strings = on", `select 'it\'; commit; insert into t values (3) --'`,
	"reset transaction_read_only", "set transaction_read_only = off", "set search_path = x", "show fencepost.role", "show fencepost.epoch",
	"set fencepost.epoch = 5", "set fencepost.epoch = 6", "listen ch", "insert into deferred values (1)", "select many", "show work_mem",
	"update t set v = 1 /* ; commit */", "-- nothing\n", "create index concurrently i on t (v)", "set constraints all deferred",
	"with w as (select 1) insert into t values (4)", "select 1 from t for update", "savepoint b", "rollback to b", "start transaction read only",
	"execute s", "prepare s as select 1", "deallocate s", "notify ch", "set transaction isolation level serializable", "explain analyze insert into t values (5)",
}

// names are those of statements, and the first few of them those of portals. Of portals
// with long names the judge takes each for an SQL cursor as well.
var names = []string{"", "s", "x", "c", strings.Repeat("n", 70), strings.Repeat("n", 70) + "m"}

const portalNames = 4

// executed are the names of the phrases' EXECUTE. None is given to a statement that
// ends a transaction: the judge takes an EXECUTE of it for the end, which for the
// server comes only at the end of the text. Nor is one given to an EXECUTE, which could
// run itself without end.
var executed = []string{"x", "s"}

// odd are messages that no client should send.
var odd = [][]byte{
	wiretest.Msg('Q', []byte("insert into t values (1)")), wiretest.Msg('Q', []byte("select 1\x00select 2\x00")), wiretest.Msg('S', []byte("x")),
	wiretest.Msg('H', []byte("x")), wiretest.Msg('D', []byte("Xs\x00")), wiretest.Msg('C', []byte("Xs\x00")), wiretest.Msg('B', []byte("p")),
	wiretest.Msg('P', []byte("s\x00")), wiretest.Msg('E', []byte("p")), wiretest.Msg('D'), {'Q', 0, 0, 0, 3}, {0, 0, 0, 0, 4},
}

// program reads a fuzzed program byte by byte; at its end all bytes are 0.
type program struct{ rest []byte }

func (p *program) next() byte {
	if len(p.rest) == 0 {
		return 0
	}
	b := p.rest[0]
	p.rest = p.rest[1:]
	return b
}

func (p *program) phrase() string { return phrases[int(p.next())%len(phrases)] }
func (p *program) name() string   { return names[int(p.next())%len(names)] }
func (p *program) portal() string { return names[int(p.next())%portalNames] }

// The operations of a program. The upper bits of the byte say what happens after it.
const (
	opQuery = iota
	opTexts // a Query of several statements
	opRun   // Parse, Bind and Execute
	opParse
	opBind
	opDescribe
	opExecute
	opClose
	opSync
	opFlush
	opCopyData
	opCopyDone
	opCopyFail
	opFunction
	opOdd
	opLease
	opArrive
	opServe
	opDeliver
	ops
)

const (
	thenArrive = 32 // the machine sees all that the client has sent
	thenSettle = 64 // and everything comes to rest
)

// message makes a message of the client's.
func (p *program) message(op byte) []byte {
	either := func(message func(kind byte, name string) []byte) []byte {
		if p.next()%2 == 0 {
			return message('S', p.name())
		}
		return message('P', p.portal())
	}
	switch op {
	case opQuery:
		return wiretest.Query(p.phrase())
	case opTexts:
		texts := make([]string, 2+p.next()%3)
		for i := range texts {
			texts[i] = p.phrase()
		}
		return wiretest.Query(strings.Join(texts, "; "))
	case opRun:
		return wiretest.Run(p.phrase())
	case opParse:
		name, text := p.name(), p.phrase()
		if s := statementOf(text); (s.isTransaction() || strings.HasPrefix(text, "execute ")) && slices.Contains(executed, name) {
			name = "c"
		}
		return wiretest.Parse(name, text)
	case opBind:
		return wiretest.Bind(p.portal(), p.name())
	case opDescribe:
		return either(wiretest.Describe)
	case opExecute:
		return wiretest.Execute(p.portal(), int(p.next()%3))
	case opClose:
		return either(wiretest.Close)
	case opSync:
		return wiretest.Sync()
	case opFlush:
		return wiretest.Flush()
	case opCopyData:
		return wiretest.CopyData([]string{"1\n", "bad\n"}[p.next()%2])
	case opCopyDone:
		return wiretest.CopyDone()
	case opCopyFail:
		return wiretest.CopyFail("no more")
	case opFunction:
		return wiretest.Msg('F', []byte{0, 0, 3, 0xbd, 0, 0, 0, 0, 0, 0})
	default:
		return odd[int(p.next())%len(odd)]
	}
}

// start returns what the session begins with.
func (p *program) start() standing {
	b := p.next()
	c := standing{mode: protocol.ModeFenced, version: 18, leads: b&6 == 0, vacant: b&6 == 4}
	if b&1 != 0 {
		c.version = 15
	}
	if b&6 == 6 {
		c.mode = protocol.ModeReadOnly
	}
	return c
}

// maxProgram bounds a program: what it shows, a short one shows too.
const maxProgram = 200

// runModel runs a program, and returns the session at its end.
func runModel(code []byte, discards bool) *session {
	p := &program{rest: code[:min(len(code), maxProgram)]}
	c := p.start()
	c.discards = discards
	s := newSession(c)
	s.note("= %+v", c)
	for len(p.rest) > 0 && !s.over {
		b := p.next()
		switch op := b & 31 % ops; op {
		case opLease:
			event := p.next()
			s.note("= lease %d", event%4)
			s.lease(event)
		case opArrive:
			s.arrive(int(p.next()))
		case opServe:
			for n := p.next(); n > 0 && s.srv.step(); n-- {
			}
		case opDeliver:
			s.deliver(int(p.next()))
		default:
			msg := p.message(op)
			s.note("C> %q", msg)
			s.client = append(s.client, msg...)
		}
		switch {
		case b&thenSettle != 0:
			s.settle()
		case b&thenArrive != 0:
			s.arrive(len(s.client))
		}
	}
	s.settle()
	return s
}

// violations are programs that violate the property in a build without the check.
var violations = map[string][]byte{
	"a write":                             {0, opQuery | thenSettle, 0},
	"a write on 15":                       {1, opQuery | thenSettle, 0},
	"a write of a follower":               {2, opQuery | thenSettle, 0},
	"a write without a resource":          {6, opQuery | thenSettle, 0},
	"a write in a block":                  {0, opQuery | thenSettle, 1, opQuery | thenSettle, 0},
	"a write after a COMMIT":              {0, opTexts | thenSettle, 1, 1, 2, 0},
	"a batch that writes":                 {0, opRun, 0, opSync | thenSettle},
	"a Bind of a name":                    {0, opParse, 1, 0, opSync | thenSettle, opBind, 0, 1, opExecute, 0, 0, opSync | thenSettle},
	"VACUUM":                              {0, opQuery | thenSettle, 8},
	"a DO that commits":                   {0, opQuery | thenSettle, 9},
	"a function call":                     {0, opFunction | thenSettle},
	"COPY":                                {0, opQuery | thenSettle, 16, opCopyData, 0, opCopyDone | thenSettle},
	"a write of who was superseded":       {0, opLease, 2, opQuery | thenSettle, 0},
	"a write after the lease lapsed":      {0, opLease, 1, opRun, 0, opSync | thenSettle},
	"a SELECT, which may call a function": {0, opQuery | thenSettle, 4},
}

// quiet are programs that are worth beginning with besides.
var quiet = [][]byte{
	{0, opQuery | thenSettle, 18, opQuery | thenSettle, 0, opRun, 18, opRun, 0, opSync | thenSettle, opQuery | thenSettle, 0},
	{0, opQuery, 0, opQuery, 1, opQuery, 0, opQuery, 2, opArrive, 10, opArrive, 200, opServe, 2, opDeliver, 30, opServe, 9, opDeliver, 200},
	{1, opRun, 0, opRun, 4, opQuery | thenSettle, 0, opSync | thenSettle}, {0, opRun, 0, opRun, 4, opQuery | thenSettle, 0, opSync | thenSettle},
	{0, opQuery | thenSettle, 34, opQuery | thenSettle, 36, opQuery | thenSettle, 35, opQuery | thenSettle, 36},
	{1, opQuery | thenSettle, 1, opQuery | thenSettle, 4, opQuery | thenSettle, 37, opQuery | thenSettle, 0, opQuery | thenSettle, 2},
	{2, opQuery | thenSettle, 40, opLease, 0, opQuery | thenSettle, 41, opQuery | thenSettle, 0, opLease, 1, opQuery | thenSettle, 0},
	{0, opQuery | thenSettle, 16, opSync, opFlush, opCopyData, 1, opCopyFail | thenSettle, opQuery | thenSettle, 0},
	{0, opRun, 16, opSync, opCopyData, 0, opCopyDone, opSync | thenSettle}, {0, opQuery | thenSettle, 11, opQuery | thenSettle, 12, opQuery | thenSettle, 14, opQuery | thenSettle, 12},
	{0, opRun, 1, opFlush | thenSettle, opQuery | thenSettle, 5, opQuery | thenSettle, 0, opQuery | thenSettle, 6, opQuery | thenSettle, 2},
}

// FuzzNoStatementWithoutItsCheck: whatever a client sends, in whatever pieces, however
// the server's answers interleave with it and whatever becomes of the lease, no byte of
// a statement leaves the machine before a check that covers it.
func FuzzNoStatementWithoutItsCheck(f *testing.F) {
	for _, code := range violations {
		f.Add(code)
	}
	for _, code := range quiet {
		f.Add(code)
	}
	f.Fuzz(func(t *testing.T, code []byte) {
		for _, discards := range []bool{false, true} {
			if s := runModel(code, discards); s.wrong != "" {
				t.Fatalf("%s\n%s", s.wrong, s.played.String())
			}
		}
	})
}

// TestModelFollowsTheMachine: the machine follows the model server to the end of the
// programs that the target begins with, so that these show what they are to show.
func TestModelFollowsTheMachine(t *testing.T) {
	t.Parallel()
	for _, code := range append(slices.Collect(maps.Values(violations)), quiet...) {
		for _, discards := range []bool{false, true} {
			if s := runModel(code, discards); s.lost != "" {
				t.Errorf("%s\n%s", s.lost, s.played.String())
			}
		}
	}
}

// TestSafetyModel: in a build without the check, each of the programs that are to show
// it has a statement leave without its check. If one has not, the test passes there,
// which make test-unfenced reports.
func TestSafetyModel(t *testing.T) {
	t.Parallel()
	var found []string
	for name, code := range violations {
		if s := runModel(code, false); s.wrong != "" {
			found = append(found, name+": "+s.wrong)
		} else if !fencing.Checking {
			t.Logf("%s: nothing is wrong", name)
			return
		}
	}
	for _, what := range found {
		t.Error(what)
	}
}
