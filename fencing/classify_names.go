package fencing

import "strings"

// queryTextNames are the views and functions that show the text of queries as
// the server got it, so that what stands in front of a client's text would be
// seen. mentionsQueryText searches for the same names in text.
var queryTextNames = map[string]bool{
	"current_query":                true,
	"pg_cursors":                   true,
	"pg_cursor":                    true,
	"pg_prepared_statements":       true,
	"pg_prepared_statement":        true,
	"pg_stat_activity":             true,
	"pg_stat_get_activity":         true,
	"pg_stat_get_backend_activity": true,
}

// evadesReadOnly says why a function of this name is not a read, although the
// server's read-only mode lets it pass.
func evadesReadOnly(name string) (string, bool) {
	if strings.HasPrefix(name, "dblink") {
		return "it works through another connection", true
	}
	why, ok := readOnlyEvaders[name]
	return why, ok
}

var readOnlyEvaders = map[string]string{}
