package table

import (
	"strings"
	"time"

	"github.com/fencepost/fencepost/internal/admin"
)

// FaultHeads are the names of the columns of Faults.
const FaultHeads = "KIND\tWHERE\tSINCE\tPROBLEM\tREMEDY"

// Faults returns what is wrong with a proxy, a row for each thing.
func Faults(r admin.Readiness) (rows [][]string) {
	for _, f := range r.Faults {
		rows = append(rows, []string{string(f.Kind), f.Where, Since(f.Since), f.Problem, f.Remedy})
	}
	for _, w := range r.Warnings {
		rows = append(rows, []string{"warning", "", "", w, ""})
	}
	if len(r.RestartPending) > 0 {
		rows = append(rows, []string{"restart pending", "", "", restartPending + strings.Join(r.RestartPending, ", "), ""})
	}
	if r.ReloadFailed != nil {
		rows = append(rows, []string{"reload failed", "", Since(*r.ReloadFailed), reloadFailed, reloadRemedy})
	}
	if r.Draining {
		rows = append(rows, []string{"draining", "", "", draining, ""})
	}
	return rows
}

// FaultLines says the same in lines, for a reader of fencepost status.
func FaultLines(r admin.Readiness) (lines []string) {
	add := func(what, text string) {
		if text != "" {
			lines = append(lines, what+": "+Dash(text))
		}
	}
	for _, f := range r.Faults {
		add(string(f.Kind), f.Problem)
		add("remedy", f.Remedy)
	}
	for _, w := range r.Warnings {
		add("warning", w)
	}
	if len(r.RestartPending) > 0 {
		add("restart pending", restartPending+Names(r.RestartPending))
	}
	if r.ReloadFailed != nil {
		add("reload failed", "at "+r.ReloadFailed.Format(time.RFC3339)+", "+reloadFailed+": "+reloadRemedy)
	}
	if r.Draining {
		add("draining", draining)
	}
	return lines
}

const (
	restartPending = "changed in the configuration, and applied by a restart only: "
	reloadFailed   = "the configuration, or a file of TLS, could not be used, and the earlier one holds"
	reloadRemedy   = "fencepost reload says what is wrong"
	draining       = "the proxy is shutting down"
)
