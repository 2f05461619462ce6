package sqltext

// Kind says what sort of statement it is.
type Kind uint8

const (
	// Ordinary statements are queries, DDL, COPY, EXPLAIN, savepoints, FETCH, NOTIFY, LOCK, CALL, DO, and everything
	// without another kind.
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
	// Refused statements are allowed to no worker: PREPARE TRANSACTION. A prepared transaction
	// would outlive its epoch. COMMIT PREPARED and ROLLBACK PREPARED are Ordinary.
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

// WhyNoRead returns why a statement that looks like a read is none, "" if it does not look like one.
func (st *Statement) WhyNoRead() string {
	if st == nil || st.Read || st.Verb != "SELECT" && st.Verb != "EXPLAIN" {
		return ""
	}
	return st.reason
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

// Unread returns why the text is not Known, "" if it is.
func (t *Text) Unread() string { return t.why }
