package demo

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
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

// reporter describes on a terminal what happens. It is used by one goroutine.
type reporter struct {
	out   io.Writer
	color bool
	start time.Time
}

func newReporter(out io.Writer, color bool) *reporter {
	return &reporter{out: out, color: color, start: time.Now()}
}

// paint wraps text in a colour.
func (r *reporter) paint(color, text string) string {
	if !r.color {
		return text
	}
	return color + text + reset
}

func (r *reporter) title(text string) { fmt.Fprintf(r.out, "\n%s\n\n", r.paint(bold, text)) }

func (r *reporter) setup(format string, args ...any) {
	fmt.Fprintf(r.out, "  %s %s\n", r.paint(green, "+"), fmt.Sprintf(format, args...))
}

// section starts a run; its clock starts at 0.
func (r *reporter) section(title string, about ...string) {
	r.start = time.Now()
	fmt.Fprintf(r.out, "\n%s\n", r.paint(bold, title))
	for _, line := range about {
		fmt.Fprintf(r.out, "%s\n", r.paint(dim, line))
	}
	fmt.Fprintln(r.out)
}

// line shows one action.
func (r *reporter) line(who, color, text string) {
	at := fmt.Sprintf("%5.1fs", time.Since(r.start).Seconds())
	fmt.Fprintf(r.out, "  %s  %s %s\n", r.paint(dim, at), r.paint(color, fmt.Sprintf("%-9s", who)), text)
}

// demo shows an action of the demo itself.
func (r *reporter) demo(format string, args ...any) {
	r.line("demo", yellow, r.paint(bold, fmt.Sprintf(format, args...)))
}

// event shows what a worker reported.
func (r *reporter) event(e event) {
	color := blue
	if e.Worker == workerNames[1] {
		color = magenta
	}
	r.line(e.Worker, color, r.describe(e))
}

func (r *reporter) describe(e event) string {
	switch e.Kind {
	case eventRole:
		if e.Role == "leader" {
			return r.paint(green, "has the lease and leads, epoch "+e.Epoch)
		}
		return "does not lead: " + e.Role
	case eventInserted:
		return fmt.Sprintf("charges invoice %d: INSERT, and waits for the payment service ...", e.Invoice)
	case eventCharged:
		return fmt.Sprintf("charged invoice %d: UPDATE, COMMIT", e.Invoice)
	case eventTold:
		return r.paint(yellow, fmt.Sprintf("asks for its role again, and gets: %s %s", e.Severity, e.SQLState))
	default:
		return r.paint(red, fmt.Sprintf("is refused at its %s: %s %s: %s", e.Step, e.Severity, e.SQLState, e.Message))
	}
}

// fencepost shows what Fencepost did on its own, according to its log.
func (r *reporter) fencepost(l scratch.LogLine) {
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
	r.line("fencepost", green, text)
}

// audit shows a line of the audit log.
func (r *reporter) audit(l scratch.LogLine) {
	r.line("audit log", red, fmt.Sprintf("%q sqlstate=%s", l.Msg, l.SQLState))
	for _, line := range []string{
		fmt.Sprintf("resource=%s worker=%s epoch=%d", l.Resource, l.Worker, l.Epoch),
		fmt.Sprintf("current_worker=%s current_epoch=%d", l.CurrentWorker, l.CurrentEpoch),
		fmt.Sprintf("statement=%q tables=%s", l.Statement, strings.Join(l.Tables, ",")),
	} {
		fmt.Fprintf(r.out, "%s%s\n", strings.Repeat(" ", 20), r.paint(dim, line))
	}
}

// verdict shows the result of a run.
func (r *reporter) verdict(good bool, format string, args ...any) {
	color := green
	if !good {
		color = red
	}
	fmt.Fprintf(r.out, "\n  %s\n", r.paint(bold+color, fmt.Sprintf(format, args...)))
}

// results shows the last two lines of the demo, for people and for scripts.
func (r *reporter) results(unfenced, fenced result) {
	fmt.Fprintf(r.out, "\nRESULT unfenced: invoices=%d charged_twice=%d\n", unfenced.invoices, unfenced.chargedTwice)
	fmt.Fprintf(r.out, "RESULT fenced:   invoices=%d charged_twice=%d refused=%d\n", fenced.invoices, fenced.chargedTwice, fenced.refused)
}
