package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
)

// Report is what the command prints.
type Report struct {
	Findings []Finding `json:"findings"`
	Notes    []string  `json:"notes"`    // what could not be known
	Failures []string  `json:"failures"` // what should have been looked at and could not be
}

// NewReport diagnoses the facts.
func NewReport(f Facts) Report {
	r := Report{Findings: Diagnose(f), Notes: f.Notes, Failures: f.Failures}
	for _, list := range []*[]string{&r.Notes, &r.Failures} {
		if *list == nil {
			*list = []string{} // not null in JSON
		}
	}
	if r.Findings == nil {
		r.Findings = []Finding{}
	}
	return r
}

// WriteJSON writes the report as JSON.
func (r Report) WriteJSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText writes the report for people.
func (r Report) WriteText(out io.Writer) error {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s: %s (%s)\n  seen: %s\n  why:  %s\n  do:   %s\n\n", f.Severity, f.ID, plain(f.Where), plain(f.Seen), f.Why, plain(f.Do))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "not known: %s\n", plain(n))
	}
	for _, n := range r.Failures {
		fmt.Fprintf(&b, "failed: %s\n", plain(n))
	}
	if len(r.Findings) == 0 && len(r.Failures) == 0 {
		b.WriteString("no findings\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// plain returns a text as one line, with what is not printable escaped. Users of Postgres
// choose names, which must not send control sequences to a terminal.
func plain(s string) string {
	var b strings.Builder
	for _, r := range strings.Join(strings.Fields(s), " ") {
		if strconv.IsPrint(r) && r != unicode.ReplacementChar {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// Err returns nil if there is nothing to report, a *BlindError if something could not be
// looked at, and otherwise an error that counts the findings.
func (r Report) Err() error {
	if len(r.Failures) > 0 {
		return &BlindError{Failures: len(r.Failures)}
	}
	counts := map[Severity]int{}
	for _, f := range r.Findings {
		counts[f.Severity]++
	}
	if len(r.Findings) == 0 {
		return nil
	}
	return fmt.Errorf("errors: %d, warnings: %d", counts[Error], counts[Warning])
}

// BlindError means that something could not be looked at.
type BlindError struct{ Failures int }

func (e *BlindError) Error() string {
	return fmt.Sprintf("could not look at everything: failures: %d (see the report)", e.Failures)
}
