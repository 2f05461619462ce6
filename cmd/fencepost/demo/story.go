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

// story describes on a terminal what happens. It is used by one goroutine.
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

// act starts a new act; its clock starts at 0.
func (s *story) act(title string, about ...string) {
	s.start = time.Now()
	fmt.Fprintf(s.out, "\n%s\n", s.paint(bold, title))
	for _, line := range about {
		fmt.Fprintf(s.out, "%s\n", s.paint(dim, line))
	}
	fmt.Fprintln(s.out)
}

// line shows one action.
func (s *story) line(who, color, text string) {
	at := fmt.Sprintf("%5.1fs", time.Since(s.start).Seconds())
	fmt.Fprintf(s.out, "  %s  %s %s\n", s.paint(dim, at), s.paint(color, fmt.Sprintf("%-9s", who)), text)
}

// demo shows an action of the demo itself.
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
		return fmt.Sprintf("charges invoice %d: INSERT, and waits for the payment service ...", e.Invoice)
	case eventCharged:
		return fmt.Sprintf("charged invoice %d: UPDATE, COMMIT", e.Invoice)
	case eventTold:
		return s.paint(yellow, fmt.Sprintf("asks for its role again, and gets: %s %s", e.Severity, e.SQLState))
	default:
		return s.paint(red, fmt.Sprintf("is refused at its %s: %s %s: %s", e.Step, e.Severity, e.SQLState, e.Message))
	}
}

// fencepost shows what Fencepost did on its own, according to its log.
func (s *story) fencepost(l logLine) {
	worker, _, _ := strings.Cut(l.Worker, ":")
	text := ""
	switch {
	case l.Msg == "released" && l.Reason == "silence":
		text = fmt.Sprintf("%s gives no sign of life: its lease is released", worker)
	case l.Msg == "terminated a backend that blocked a grant":
		text = fmt.Sprintf("a transaction of the old epoch outlasted the grace (%s): its backend is ended", l.State)
	case l.Msg == "takeover":
		text = fmt.Sprintf("%s is granted epoch %d", worker, l.Epoch)
	default:
		return
	}
	s.line("fencepost", green, text)
}

// audit shows a line of the audit log.
func (s *story) audit(l logLine) {
	s.line("audit log", red, fmt.Sprintf("%q sqlstate=%s", l.Msg, l.SQLState))
	for _, line := range []string{
		fmt.Sprintf("resource=%s worker=%s epoch=%d", l.Resource, l.Worker, l.Epoch),
		fmt.Sprintf("current_worker=%s current_epoch=%d", l.CurrentWorker, l.CurrentEpoch),
		fmt.Sprintf("statement=%q tables=%s", l.Statement, strings.Join(l.Tables, ",")),
	} {
		fmt.Fprintf(s.out, "%s%s\n", strings.Repeat(" ", 20), s.paint(dim, line))
	}
}

// verdict shows the result of an act.
func (s *story) verdict(good bool, format string, args ...any) {
	color := green
	if !good {
		color = red
	}
	fmt.Fprintf(s.out, "\n  %s\n", s.paint(bold+color, fmt.Sprintf(format, args...)))
}

// results shows the last two lines of the demo, for people and for scripts.
func (s *story) results(unfenced, fenced result) {
	fmt.Fprintf(s.out, "\nRESULT unfenced: invoices=%d charged_twice=%d\n", unfenced.invoices, unfenced.chargedTwice)
	fmt.Fprintf(s.out, "RESULT fenced:   invoices=%d charged_twice=%d refused=%d\n", fenced.invoices, fenced.chargedTwice, fenced.refused)
}
