package startup

import (
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

// maxName is the length in bytes to which Postgres cuts application_name (NAMEDATALEN - 1).
const maxName = 63

// isApplicationName reports whether a parameter is application_name, as Postgres compares names.
func isApplicationName(name string) bool { return strings.EqualFold(name, "application_name") }

// NameWorker returns the application_name of a connection of a worker for a resource, in ASCII and not
// longer than Postgres shows it: resource/worker, or that in brackets after the client's own
// name, which is cut if both together are too long.
func NameWorker(client, resource, worker string) string {
	label := fencing.ASCII(resource + "/" + worker)
	if client == "" {
		return cut(label, maxName)
	}
	end := " [" + cut(label, maxName-len(" []")) + "]"
	return strings.TrimPrefix(cut(fencing.ASCII(client), maxName-len(end))+end, " ")
}

func cut(s string, most int) string { return s[:min(len(s), most)] }
