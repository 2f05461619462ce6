// Package appname makes the application_name that shows in pg_stat_activity which worker a
// connection belongs to.
package appname

import (
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

// Name is the name of the parameter.
const Name = "application_name"

// max is the length in bytes to which Postgres cuts the parameter (NAMEDATALEN - 1).
const max = 63

// Is reports whether this is the name of the parameter, as Postgres compares names.
func Is(name string) bool { return strings.EqualFold(name, Name) }

// Of returns the application_name of a connection of a worker for a resource, in ASCII and not
// longer than Postgres shows it: resource/worker, or that in brackets after the client's own
// name, which is cut if both together are too long.
func Of(client, resource, worker string) string {
	label := fencing.ASCII(resource + "/" + worker)
	if client == "" {
		return cut(label, max)
	}
	end := " [" + cut(label, max-len(" []")) + "]"
	return strings.TrimPrefix(cut(fencing.ASCII(client), max-len(end))+end, " ")
}

func cut(s string, most int) string { return s[:min(len(s), most)] }
