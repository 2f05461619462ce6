package demo

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// ANSI colours, used only on a terminal.
const (
	bold    = "\x1b[1m"
	dim     = "\x1b[2m"
	red     = "\x1b[31m"
	green   = "\x1b[32m"
	yellow  = "\x1b[33m"
	blue    = "\x1b[34m"
	magenta = "\x1b[35m"
	reset   = "\x1b[0m"
)

// story tells on a terminal what happens. It is used by one goroutine.
type story struct {
	out   io.Writer
	color bool
	start time.Time
}

func newStory(out io.Writer, color bool) *story {
	return &story{out: out, color: color, start: time.Now()}
}

// paint wraps text in a colour.
func (s *story) paint(color, text string) string {
	if !s.color {
		return text
	}
	return color + text + reset
}

func (s *story) title(text string) { fmt.Fprintf(s.out, "\n%s\n\n", s.paint(bold, text)) }

func (s *story) setup(format string, args ...any) {
	fmt.Fprintf(s.out, "  %s %s\n", s.paint(green, "+"), fmt.Sprintf(format, args...))
}

// act begins a new act: its clock starts at 0.
func (s *story) act(title string, about ...string) {
	s.start = time.Now()
	fmt.Fprintf(s.out, "\n%s\n", s.paint(bold, title))
	for _, line := range about {
		fmt.Fprintf(s.out, "%s\n", s.paint(dim, line))
	}
	fmt.Fprintln(s.out)
}

// line is one thing that somebody did.
func (s *story) line(who, color, text string) {
	at := fmt.Sprintf("%5.1fs", time.Since(s.start).Seconds())
	fmt.Fprintf(s.out, "  %s  %s %s\n", s.paint(dim, at), s.paint(color, fmt.Sprintf("%-9s", who)), text)
}

// demo is something the demo itself did.
func (s *story) demo(format string, args ...any) {
	s.line("demo", yellow, s.paint(bold, fmt.Sprintf(format, args...)))
}

// event shows what a worker reported.
func (s *story) event(e event) {
	color := blue
	if e.Worker == workerNames[1] {
		color = magenta
	}
	s.line(e.Worker, color, s.describe(e))
}

func (s *story) describe(e event) string {
	switch e.Kind {
	case eventRole:
		if e.Role == "leader" {
			return s.paint(green, "has the lease and leads, epoch "+e.Epoch)
		}
		return "does not lead: " + e.Role
	case eventInserted:
		return fmt.Sprintf("charges invoice %d: INSERT is done, the payment service works ...", e.Invoice)
	case eventCharged:
		return fmt.Sprintf("charged invoice %d: UPDATE, COMMIT", e.Invoice)
	default:
		return s.paint(red, fmt.Sprintf("is refused at its %s: %s %s: %s", e.Step, e.Severity, e.SQLState, e.Message))
	}
}

// audit shows a line of the audit log.
func (s *story) audit(a auditLine) {
	s.line("audit log", red, fmt.Sprintf("%q sqlstate=%s", a.Msg, a.SQLState))
	for _, line := range []string{
		fmt.Sprintf("resource=%s worker=%s epoch=%d", a.Resource, a.Worker, a.Epoch),
		fmt.Sprintf("current_worker=%s current_epoch=%d", a.CurrentWorker, a.CurrentEpoch),
		fmt.Sprintf("statement=%q tables=%s", a.Statement, strings.Join(a.Tables, ",")),
	} {
		fmt.Fprintf(s.out, "  %s  %s\n", strings.Repeat(" ", 16), s.paint(dim, line))
	}
}

// verdict sums an act up.
func (s *story) verdict(good bool, format string, args ...any) {
	color := green
	if !good {
		color = red
	}
	fmt.Fprintf(s.out, "\n  %s\n", s.paint(color, fmt.Sprintf(format, args...)))
}

// results are the last two lines of the demo, for people and for scripts.
func (s *story) results(unfenced, fenced result) {
	fmt.Fprintf(s.out, "\nRESULT unfenced: invoices=%d charged_twice=%d\n", unfenced.invoices, unfenced.chargedTwice)
	fmt.Fprintf(s.out, "RESULT fenced:   invoices=%d charged_twice=%d refused=%d\n", fenced.invoices, fenced.chargedTwice, fenced.refused)
}
