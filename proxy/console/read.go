package console

import (
	"context"
	"fmt"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// Command is what SHOW and its name show: a table of texts.
type Command struct {
	Name    string // one word in lower case
	About   string // what SHOW HELP says of it
	Columns []string
	// Rows returns the table as it is now, with a value for each column. An empty value is sent as NULL. It
	// returns when ctx ends.
	Rows func(ctx context.Context) ([][]string, error)
}

// statement is what the text of one statement asks for.
type statement struct {
	tag     string   // with which it completes; "" if the text contains nothing
	columns []string // nil: it returns no rows
	rows    func(ctx context.Context) ([][]string, error)
	status  byte // of the transaction after it; 0: as before
	forgets bool // it drops the prepared statement of the name drops, or all if that is ""
	drops   string
}

const helpHint = "Run SHOW HELP to see what can be asked here. For a database of Postgres, connect with its name."

// read returns the statements of a text. What drivers and pools send by themselves (SET, RESET, DISCARD, BEGIN, SELECT
// 1) is accepted, and does nothing. Its error is a *fencing.Refusal.
func read(text string, commands []Command, parameters [][2]string) ([]statement, error) {
	t := sqltext.Analyze(text, sqltext.DefaultSettings)
	if !t.Known {
		return nil, &fencing.Refusal{SQLState: "42601", Message: "this is no statement of SQL that the console of Fencepost can read", Hint: helpHint}
	}
	all := make([]statement, len(t.Statements))
	for i := range t.Statements {
		st := &t.Statements[i]
		var err error
		if all[i], err = readOne(st, text[st.Start:st.End], commands, parameters); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func readOne(st *sqltext.Statement, text string, commands []Command, parameters [][2]string) (statement, error) {
	switch st.Kind {
	case sqltext.Begin:
		return statement{tag: "BEGIN", status: 'T'}, nil
	case sqltext.Commit:
		return statement{tag: "COMMIT", status: 'I'}, nil
	case sqltext.Rollback:
		return statement{tag: "ROLLBACK", status: 'I'}, nil
	case sqltext.Discard:
		return statement{tag: "DISCARD " + strings.ToUpper(st.Name), forgets: st.Name == "all"}, nil
	case sqltext.Deallocate:
		tag := "DEALLOCATE"
		if st.Name == "" {
			tag = "DEALLOCATE ALL"
		}
		return statement{tag: tag, forgets: true, drops: st.Name}, nil
	case sqltext.Session:
		switch st.Verb {
		case "SHOW":
			return show(st.Name, commands, parameters)
		case "SET", "RESET", "UNLISTEN":
			return statement{tag: st.Verb}, nil
		}
	}
	if strings.EqualFold(strings.Join(strings.Fields(text), " "), "select 1") {
		return table("SELECT 1", []string{"?column?"}, [][]string{{"1"}}), nil
	}
	return statement{}, &fencing.Refusal{SQLState: "0A000", Message: "the console of Fencepost answers SHOW, and nothing else", Hint: helpHint}
}

// show is a SHOW of a command, or of a parameter that was reported to the client.
func show(name string, commands []Command, parameters [][2]string) (statement, error) {
	if name == "help" {
		rows := [][]string{{"SHOW HELP", "this list"}}
		for _, c := range commands {
			rows = append(rows, []string{"SHOW " + strings.ToUpper(c.Name), c.About})
		}
		return table("SHOW", []string{"command", "shows"}, rows), nil
	}
	for _, c := range commands {
		if c.Name == name {
			return statement{tag: "SHOW", columns: c.Columns, rows: c.Rows}, nil
		}
	}
	for _, p := range parameters {
		if strings.EqualFold(p[0], name) {
			return table("SHOW", []string{name}, [][]string{{p[1]}}), nil
		}
	}
	return statement{}, &fencing.Refusal{SQLState: "42704", Message: fmt.Sprintf("the console of Fencepost has no SHOW %s", fencing.ASCII(strings.ToUpper(name))), Hint: helpHint}
}

// table is a statement whose rows do not change.
func table(tag string, columns []string, rows [][]string) statement {
	return statement{tag: tag, columns: columns, rows: func(context.Context) ([][]string, error) { return rows, nil }}
}
