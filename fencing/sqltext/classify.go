package sqltext

import (
	"bytes"
	"strings"
)

// Kind says what sort of statement it is.
type Kind uint8

const (
	// Ordinary statements are queries, DDL, COPY, EXPLAIN, savepoints, FETCH, NOTIFY, LOCK, CALL, DO, and everything without
	// another kind.
	Ordinary Kind = iota
	// Session is SET, SHOW and RESET of anything but fencepost.*, LISTEN and UNLISTEN. SET CONSTRAINTS is not
	// one of them, because it can run deferred triggers.
	Session
	// Begin is BEGIN and START TRANSACTION.
	Begin
	// Commit is COMMIT and END, including AND CHAIN.
	Commit
	// Rollback is ROLLBACK and ABORT, including AND CHAIN but not ROLLBACK TO.
	Rollback
	// RollbackTo is ROLLBACK TO a savepoint. Apart from Rollback and Commit it is the
	// only command that a failed transaction accepts.
	RollbackTo
	// Discard is DISCARD in any form. With ALL it also drops every prepared statement,
	// and cannot follow another statement in a transaction.
	Discard
	// Deallocate is DEALLOCATE of one name or of ALL (Name is empty).
	Deallocate
	// Refused statements are allowed on no connection: PREPARE TRANSACTION, COMMIT
	// PREPARED, ROLLBACK PREPARED. A prepared transaction would outlive its epoch.
	Refused
	// ByMessage is PREPARE, EXECUTE and DECLARE CURSOR.
	ByMessage
	// ShowFence is SHOW fencepost.<Name>.
	ShowFence
	// SetFence is SET [SESSION | LOCAL] fencepost.<Name> = Value, and RESET of any of them
	// but fencepost.epoch. Only those of the resource, the epoch and the token can succeed.
	SetFence
)

var kindNames = [...]string{"ordinary", "session", "begin", "commit", "rollback", "rollback to",
	"discard", "deallocate", "refused", "by message", "show fence", "set fence"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Statement is what the text of one statement shows. It is made only by the grammar
// (Analyze) and by Quick, which proves it from the bytes.
type Statement struct {
	Kind Kind
	// Read means harmless as far as the grammar can tell, so that it may run in a
	// read-only transaction of a worker that does not lead. It says nothing about the
	// effects of functions, views and operators; the server's read-only mode covers
	// those.
	Read bool
	// effects is what it does, for Does.
	effects Effect
	// Command is that of INSERT, UPDATE, DELETE and MERGE, which are never a Read.
	Command Command
	// Verb is the first word of the statement in upper case, but SELECT for every query. Quick does not set it.
	Verb string
	// Name is the parameter of SHOW in lower case, and that of ShowFence and SetFence without
	// "fencepost."; the statement's or cursor's name for PREPARE, EXECUTE, DEALLOCATE
	// and DECLARE; all, plans, sequences or temp for DISCARD.
	Name string
	// Value is the new value of SetFence.
	Value string
	// Start and End are byte offsets in the original text. Start is 0 or directly after
	// the preceding semicolon; End is the end of the text or the statement's own
	// semicolon. Comments and space around the statement belong to it.
	Start, End int
	// reason describes what determined Read and Kind, for Explain.
	reason string
	// dependencies are what a Read depends on, for Proven.
	dependencies *dependencies
}

// Command is a command that modifies a table.
type Command uint8

const (
	// NoCommand means that a statement is none of these.
	NoCommand Command = iota
	Insert
	Update
	Delete
	Merge
)

// String returns the first word of the tag with which Postgres answers the command.
func (c Command) String() string {
	return [...]string{NoCommand: "", Insert: "INSERT", Update: "UPDATE", Delete: "DELETE", Merge: "MERGE"}[c]
}

// Text is what is known about the text of one Query or Parse message. It is immutable,
// because a Cache returns the same Text to many callers.
type Text struct {
	// Statements are in the order of the text, as parsed by the grammar. If Known and
	// empty, the text contains only space, comments and semicolons.
	Statements []Statement
	// Known means that the grammar of Postgres accepted the text. If not (a syntax
	// error, syntax newer than this grammar, too long or too deep, an encoding that
	// hides ASCII bytes), nothing is known about it, not even the number of statements.
	// It must be treated as if it did the worst.
	Known bool
	// why describes why the text is not Known.
	why string
}

// Settings are the session's settings that determine how a text is read.
type Settings struct {
	// StandardConformingStrings is the reported parameter of that name. If it is off, a
	// backslash in '...' is an escape.
	StandardConformingStrings bool
	// SafeEncoding is the result of the function SafeEncoding.
	SafeEncoding bool
}

// DefaultSettings are the settings of a session that has changed none.
var DefaultSettings = Settings{StandardConformingStrings: true, SafeEncoding: true}

// Dependence is what the meaning of a text depends on in addition to the text.
type Dependence uint8

const (
	// OnNothing means that the text has the same meaning under all settings.
	OnNothing Dependence = iota
	// OnEncoding means that it contains bytes outside ASCII, which client_encoding
	// interprets.
	OnEncoding
	// OnQuoting means that it contains a backslash, whose meaning depends on
	// standard_conforming_strings, on settings that the server does not report, and on
	// client_encoding.
	OnQuoting
)

// DependenceOf returns what the meaning of sql depends on.
func DependenceOf(sql []byte) Dependence {
	switch {
	case bytes.IndexByte(sql, '\\') >= 0:
		return OnQuoting
	case !isASCII(sql):
		return OnEncoding
	default:
		return OnNothing
	}
}

// SafeEncoding reports whether no byte of a multi-byte character can be an ASCII byte
// in the given client_encoding, so that quotes, backslashes and semicolons are what
// they appear to be. Unknown names are not safe.
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

// safeEncodings are all encodings that Postgres allows in a database, by their names in
// normalised form, including aliases. Those that only a client may use (SJIS,
// SHIFT_JIS_2004, BIG5, GBK, UHC, GB18030, JOHAB) are the ones whose trail bytes can be
// ASCII.
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
