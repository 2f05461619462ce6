package fencing

import (
	"slices"
	"strings"
)

// guess tells the kind of a statement by the words it begins with, in lower
// case. Flags err on the side of caution.
func guess(words []string) Statement {
	word := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	st := Statement{Kind: Ordinary, reason: "not known to the grammar"}
	st.OnlyInBlock = word(0) == "lock" || word(0) == "savepoint" || word(0) == "set" && word(1) == "constraints" || word(0) == "declare"
	switch word(0) {
	case "begin", "start":
		st.Kind, st.Isolation = Begin, len(words) > 1
	case "commit", "end", "rollback", "abort":
		guessEnd(words, &st)
	case "prepare":
		st.Kind = ByMessage
		if word(1) == "transaction" {
			st.Kind, st.EndsTx = Refused, true
		}
	case "execute", "declare":
		st.Kind = ByMessage
	case "savepoint":
		st.Savepoint = true
	case "release":
		st.Savepoint, st.EndsSavepoint = true, true
	case "set", "reset":
		if word(1) != "constraints" {
			st.Kind, st.UnsetsReadOnly = Session, true
			st.Isolation = word(0) == "set"
		}
	case "show", "listen", "unlisten":
		st.Kind = Session
	case "discard":
		st.Kind = Discard
	case "deallocate":
		st.Kind = Deallocate
	case "call", "do":
		st.Kind, st.EndsTx = Alone, true
	default:
		if guessAlone(words) {
			st.Kind = Alone
		}
	}
	return st
}

// guessEnd tells COMMIT, ROLLBACK and their synonyms from COMMIT PREPARED,
// ROLLBACK PREPARED and ROLLBACK TO.
func guessEnd(words []string, st *Statement) {
	for _, w := range words[1:] {
		switch w {
		case "prepared":
			st.Kind, st.EndsTx = Refused, true
			return
		case "to":
			st.Kind, st.Savepoint, st.EndsSavepoint = RollbackTo, true, true
			return
		case "chain":
			st.Chain = !slices.Contains(words, "no")
		}
	}
	st.Kind, st.EndsTx = Rollback, true
	if words[0] == "commit" || words[0] == "end" {
		st.Kind = Commit
	}
}

// guessAlone tells the statements that must be alone, with those that are
// newer than our grammar. A word too many costs time only.
func guessAlone(words []string) bool {
	if len(words) == 0 {
		return false
	}
	switch words[0] {
	case "vacuum", "analyze", "analyse", "cluster", "reindex", "repack", "wait":
		return true
	case "create", "drop", "alter":
		return slices.ContainsFunc(words[1:], func(w string) bool {
			return w == "database" || w == "tablespace" || w == "system" || w == "subscription" || w == "concurrently"
		})
	}
	return false
}

// lower folds as Postgres folds keywords and names of parameters: ASCII only.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}
