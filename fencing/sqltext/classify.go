package sqltext

import (
	"strings"
	"unicode/utf8"
)

// Kind says how a statement meets the check: whether one stands in front of
// it, and what becomes of the transaction behind it.
type Kind uint8

const (
	// Ordinary is checked as usual: queries, DDL, COPY, EXPLAIN, savepoints,
	// FETCH, NOTIFY, LOCK, and everything that has no kind of its own.
	Ordinary Kind = iota
	// Session is SET, SHOW, RESET of anything but fencepost.*, LISTEN and
	// UNLISTEN: they may come before the transaction's check. SET CONSTRAINTS
	// is not one of them: it can run deferred triggers.
	Session
	// Begin is BEGIN and START TRANSACTION.
	Begin
	// Commit is COMMIT and END, with AND CHAIN too.
	Commit
	// Rollback is ROLLBACK and ABORT, with AND CHAIN too, not ROLLBACK TO.
	Rollback
	// RollbackTo is ROLLBACK TO a savepoint. It is the one command but Rollback
	// and Commit that a failed transaction takes, so nothing stands in front.
	RollbackTo
	// NonTransactional cannot share a transaction with something in front of it, or may
	// commit inside: VACUUM, ANALYZE, CREATE DATABASE, the CONCURRENTLY forms, CALL, DO.
	// In a transaction block, and among others in one simple Query, Postgres
	// itself refuses what must be alone, and COMMIT inside CALL and DO. As an
	// extended message outside a block it does not: up to 17, a CALL that
	// commits inside takes the transaction of the messages before it along.
	NonTransactional
	// Discard is DISCARD in any form. With ALL it also ends every prepared
	// statement, and cannot share a transaction with something in front.
	Discard
	// Deallocate is DEALLOCATE of one name, or ALL of them (Name is empty).
	Deallocate
	// Refused is what no connection may do here: PREPARE TRANSACTION, COMMIT
	// PREPARED, ROLLBACK PREPARED. A prepared transaction would outlive its
	// epoch.
	Refused
	// ByMessage is PREPARE, EXECUTE and DECLARE CURSOR: Postgres keeps their
	// text or reports positions within it, so when one is alone in a simple
	// Query it goes as extended messages, with nothing in front of its text.
	ByMessage
	// ShowFence is SHOW fencepost.<Name>.
	ShowFence
	// SetFence is SET [SESSION | LOCAL] fencepost.<Name> = Value.
	SetFence
)

var kindNames = [...]string{"ordinary", "session", "begin", "commit", "rollback", "rollback to", "alone",
	"discard", "deallocate", "refused", "by message", "show fence", "set fence"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Statement is what the text of one statement tells about it. Only the grammar
// (Analyze) and the proof by bytes of Quick make one: what is merely guessed is
// a Guess.
type Statement struct {
	Kind Kind
	// Read: harmless as far as the grammar can tell, so that it may run in a
	// read-only transaction of a worker that does not lead. It says nothing
	// about what functions, views and operators do; the server's read-only
	// mode sees through those.
	Read bool
	// Chain: COMMIT or ROLLBACK with AND CHAIN. The next transaction has begun.
	Chain bool
	// UnsetsReadOnly: its text may undo a read-only mode that was set by the
	// transaction's first query, which PostgreSQL 14 and 15 allow: RESET
	// transaction_read_only, SET of it to DEFAULT, and set_config. (RESET ALL,
	// SET TRANSACTION READ WRITE and SET SESSION CHARACTERISTICS do not.)
	UnsetsReadOnly bool
	// Savepoint is SAVEPOINT, RELEASE and ROLLBACK TO.
	Savepoint bool
	// EndsSavepoint is RELEASE and ROLLBACK TO: what was set since the savepoint
	// may be undone, a read-only mode among it.
	EndsSavepoint bool
	// Prepares: it is PREPARE, which gives Name a meaning.
	Prepares bool
	// Executes: it is EXECUTE of a prepared statement.
	Executes bool
	// PreparesTransaction: it is PREPARE TRANSACTION. Whenever Postgres refuses
	// it in a block, the block ends.
	PreparesTransaction bool
	// EndsTransaction: it ends the transaction, or may (CALL and DO).
	EndsTransaction bool
	// Hides: it is CALL or DO, which run what their trees do not show.
	Hides bool
	// MayFreeNames: it Hides, and its text has a word in it that frees names of
	// prepared statements.
	MayFreeNames bool
	// Modifies: it is INSERT, UPDATE, DELETE or MERGE, so no Read. Quick says it
	// only of a text that begins with that word, not with WITH.
	Modifies bool
	// TakesSnapshot: to parse or bind it is a query of the transaction, after
	// which its isolation cannot be changed.
	TakesSnapshot bool
	// Isolation: BEGIN or SET that fixes the isolation, mode or snapshot of
	// the transaction, which must come before its first query.
	Isolation bool
	// SetsIsolation: of those, it sets the isolation level or the snapshot, which
	// Postgres refuses after a query.
	SetsIsolation bool
	// RequiresTransactionBlock: outside a transaction block Postgres refuses it, or warns and
	// does nothing: LOCK, SET CONSTRAINTS, SAVEPOINT, DECLARE without HOLD.
	RequiresTransactionBlock bool
	// MentionsQueryText: it names something that shows the text of the query
	// that runs (current_query, pg_stat_activity), which must be the client's own.
	// Of text that is not parsed it is true for what MentionsKeptText means, too.
	MentionsQueryText bool
	// MentionsKeptText: it names something that shows the texts of cursors or
	// prepared statements, among them those made by the same Query.
	MentionsKeptText bool
	// Name is the parameter of ShowFence and SetFence in lower case without
	// "fencepost."; the statement's or cursor's name for PREPARE, EXECUTE,
	// DEALLOCATE and DECLARE; all, plans, sequences or temp for DISCARD.
	Name string
	// Value is the new value of SetFence.
	Value string
	// Start and End are offsets in bytes of the text as it was given. Start is
	// 0 or just behind the semicolon before; End is the end of the text or the
	// statement's own semicolon. Comments and space around belong to it.
	Start, End int
	// reason says in words what decided about Read and Kind, for Explain.
	reason string
	// dependencies is what a Read rests on, for Proven.
	dependencies *dependencies
}

// Text is what is known of the text of one Query or Parse message. It is
// immutable: a Cache hands the same Text to many.
type Text struct {
	// Statements are in order of the text, as the grammar parsed them. Known and
	// empty: nothing but space, comments and semicolons.
	Statements []Statement
	// Known: the grammar of Postgres accepted the text. If not (an error in it,
	// syntax newer than our grammar, too long or too deep, an encoding that hides
	// ASCII bytes), nothing is known of it, not even how many statements there
	// are: it has to be treated as if it did the worst.
	Known bool
	// why says in words why the text is not Known.
	why string
}

// Settings are the session's settings that decide how a text is read.
type Settings struct {
	// StandardConformingStrings is the reported parameter of that name. Off
	// makes a backslash in '...' an escape.
	StandardConformingStrings bool
	// SafeEncoding: see the function of that name.
	SafeEncoding bool
}

// DefaultSettings are those of a session that changed nothing.
var DefaultSettings = Settings{StandardConformingStrings: true, SafeEncoding: true}

// Dependence is what the meaning of a text depends on besides the text.
type Dependence uint8

const (
	// OnNothing: the text means the same under all settings.
	OnNothing Dependence = iota
	// OnEncoding: it has bytes outside ASCII, which client_encoding explains.
	OnEncoding
	// OnQuoting: it has a backslash, whose meaning depends on
	// standard_conforming_strings, on settings that the server does not report,
	// and on client_encoding.
	OnQuoting
)

// DependenceOf returns what the meaning of sql depends on.
func DependenceOf(sql []byte) Dependence {
	d := OnNothing
	for _, c := range sql {
		if c == '\\' {
			return OnQuoting
		}
		if c >= utf8.RuneSelf {
			d = OnEncoding
		}
	}
	return d
}

// SafeEncoding reports whether no byte of a multi-byte character can be an
// ASCII byte in the given client_encoding, so that quotes, backslashes and
// semicolons are what they seem. Unknown names are not safe.
func SafeEncoding(clientEncoding string) bool {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		default:
			return -1 // Postgres ignores the rest: UTF-8 is UTF8
		}
	}, clientEncoding)
	return safeEncodings[name]
}

// safeEncodings are all encodings that Postgres allows in a database, by their
// names without punctuation and case, aliases included. Those that only a
// client may use (SJIS, SHIFT_JIS_2004, BIG5, GBK, UHC, GB18030, JOHAB) are
// the ones whose trail bytes can be ASCII.
var safeEncodings = map[string]bool{
	"sqlascii": true, "utf8": true, "unicode": true, "muleinternal": true,
	"eucjp": true, "euccn": true, "euckr": true, "euctw": true, "eucjis2004": true,
	"latin1": true, "latin2": true, "latin3": true, "latin4": true, "latin5": true,
	"latin6": true, "latin7": true, "latin8": true, "latin9": true, "latin10": true,
	"iso88591": true, "iso88592": true, "iso88593": true, "iso88594": true, "iso88595": true,
	"iso88596": true, "iso88597": true, "iso88598": true, "iso88599": true, "iso885910": true,
	"iso885913": true, "iso885914": true, "iso885915": true, "iso885916": true,
	"win1250": true, "win1251": true, "win1252": true, "win1253": true, "win1254": true,
	"win1255": true, "win1256": true, "win1257": true, "win1258": true, "win866": true, "win874": true,
	"windows1250": true, "windows1251": true, "windows1252": true, "windows1253": true,
	"windows1254": true, "windows1255": true, "windows1256": true, "windows1257": true,
	"windows1258": true, "windows866": true, "windows874": true,
	"abc": true, "alt": true, "tcvn": true, "tcvn5712": true, "vscii": true, "win": true,
	"koi8": true, "koi8r": true, "koi8u": true,
}
