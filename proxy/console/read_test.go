package console

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
)

var testCommands = []Command{{
	Name: "things", About: "all things", Columns: []string{"name", "size"},
	Rows: func(context.Context) ([][]string, error) { return [][]string{{"a", "1"}, {"b", ""}}, nil },
}}

// TestTexts says what a text asks for: the tags of its statements and their rows, or the SQLSTATE of its refusal.
func TestTexts(t *testing.T) {
	t.Parallel()
	parameters := [][2]string{{"server_version", "15.0"}, {"TimeZone", "UTC"}}
	for text, want := range map[string]string{
		"SHOW THINGS":                      "SHOW[name size: a 1, b ]",
		"show things;":                     "SHOW[name size: a 1, b ]",
		" /* a comment */ Show \"things\"": "SHOW[name size: a 1, b ]",
		"SHOW HELP":                        "SHOW[command shows: SHOW HELP this list, SHOW THINGS all things]",
		"SHOW server_version":              "SHOW[server_version: 15.0]",
		"SHOW TIMEZONE":                    "SHOW[timezone: UTC]",
		"SELECT 1":                         "SELECT 1[?column?: 1]",
		" select  1 ;":                     "SELECT 1[?column?: 1]",
		"":                                 "",
		" ; ;":                             "",
		"-- ping":                          "",
		"SET application_name = 'a; b'":    "SET",
		"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY": "SET",
		"SET search_path TO x; RESET ALL":                      "SET, RESET",
		"BEGIN ISOLATION LEVEL SERIALIZABLE":                   "BEGIN",
		"START TRANSACTION":                                    "BEGIN",
		"COMMIT; ROLLBACK":                                     "COMMIT, ROLLBACK",
		"DISCARD ALL":                                          "DISCARD ALL",
		"UNLISTEN *":                                           "UNLISTEN",
		"DEALLOCATE ALL; DEALLOCATE x":                         "DEALLOCATE ALL, DEALLOCATE",

		"SHO THINGS":                     "42601",
		"SHOW THINGS; 'open":             "42601",
		"SHOW \x00":                      "42601",
		"SHOW":                           "42601",
		"SHOW nothing":                   "42704",
		"SHOW ALL":                       "42704",
		"SHOW fencepost.role":            "0A000",
		"SELECT 2":                       "0A000",
		"SELECT 1, pg_sleep(1)":          "0A000",
		"SHOW THINGS; DROP TABLE t":      "0A000",
		"UPDATE t SET a = 1":             "0A000",
		"SET fencepost.resource = 'x'":   "0A000",
		"LISTEN x":                       "0A000",
		"SAVEPOINT s":                    "0A000",
		"PREPARE p AS SELECT 1":          "0A000",
		"COPY t FROM STDIN":              "0A000",
		strings.Repeat("(", 5000) + "1;": "42601",
	} {
		if got := readText(t, text, parameters); got != want {
			t.Errorf("%.60q: %s, want %s", text, got, want)
		}
	}
}

// readText returns what read makes of a text, in one line.
func readText(t *testing.T, text string, parameters [][2]string) string {
	t.Helper()
	all, err := read(text, testCommands, parameters)
	var r *fencing.Refusal
	if errors.As(err, &r) {
		if !strings.Contains(r.Hint, "SHOW HELP") {
			t.Errorf("%.60q: the hint is %q", text, r.Hint)
		}
		return r.SQLState
	}
	var tags []string
	for _, st := range all {
		tag := st.tag
		if st.columns != nil {
			rows, err := st.rows(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, row := range rows {
				lines = append(lines, strings.Join(row, " "))
			}
			tag += "[" + strings.Join(st.columns, " ") + ": " + strings.Join(lines, ", ") + "]"
		}
		tags = append(tags, tag)
	}
	return strings.Join(tags, ", ")
}
