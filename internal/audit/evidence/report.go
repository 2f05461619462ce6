package evidence

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fencepost/fencepost/fencing/evidence"
)

// Report is what was found in the stamped tables of a database. Its JSON is a contract.
type Report struct {
	Findings []Finding `json:"findings"`
	Tables   []*Table  `json:"tables"`
}

// Finding is a transaction that wrote rows of a table under an epoch that was not its own.
type Finding struct {
	Kind     kind   `json:"kind"`
	Resource string `json:"resource"`
	Table    string `json:"table"`
	Epoch    int64  `json:"epoch"` // the stamp
	// Xid is the transaction, or the subtransaction, that wrote the rows.
	Xid  evidence.Xid `json:"xid"`
	Rows int64        `json:"rows"`
	// Committed is known if the server has track_commit_timestamp on.
	Committed *time.Time `json:"committed,omitempty"`
	// The next grant, after which they were written, if they are late.
	Next       int64      `json:"next_epoch,omitempty"`
	NextWorker string     `json:"next_worker,omitempty"`
	NextAt     *time.Time `json:"next_granted_at,omitempty"`
}

// Table counts the rows of a table by what was found out about them.
type Table struct {
	Name     string `json:"table"`
	Resource string `json:"resource"`
	Stamp    string `json:"stamp,omitempty"`
	Rows     int64  `json:"rows"`
	// Verified rows were committed before the next epoch was granted.
	Verified int64 `json:"verified"`
	// Current rows are of the newest epoch, after which nothing was granted.
	Current int64 `json:"current"`
	// Unclear rows are verified unless they were written in a subtransaction of a
	// transaction that was open when the next epoch was granted.
	Unclear   int64 `json:"unclear"`
	Unstamped int64 `json:"unstamped"`
	// Skipped rows are of epochs that ended before the time of interest.
	Skipped    int64        `json:"skipped,omitempty"`
	Unverified []Unverified `json:"unverified,omitempty"`
	// Problems say why the table as a whole cannot be relied on.
	Problems []string `json:"problems,omitempty"`

	findings []Finding
}

// Unverified counts the rows that could not be verified for one reason.
type Unverified struct {
	Reason reason `json:"reason"`
	Rows   int64  `json:"rows"`
	First  int64  `json:"first_epoch"` // the lowest stamp of them
	Last   int64  `json:"last_epoch"`
}

func newTable(t evidence.Table) *Table {
	return &Table{Name: t.Name, Resource: t.Resource, Stamp: t.Stamp}
}

func (t *Table) problem(text string) { t.Problems = append(t.Problems, text) }

// count adds a group of rows.
func (t *Table) count(r evidence.Rows, v verdict) {
	t.Rows += r.Count
	switch {
	case v.kind != "":
		f := Finding{Kind: v.kind, Resource: t.Resource, Table: t.Name, Epoch: *r.Stamp, Xid: *r.Xid, Rows: r.Count}
		if v.next != nil {
			f.Next, f.NextWorker, f.NextAt = v.next.Epoch, v.next.Worker, &v.next.At
		}
		t.findings = append(t.findings, f)
	case v.reason != "":
		t.unverified(v.reason, *r.Stamp, r.Count)
	case v.verified:
		t.Verified += r.Count
	case v.current:
		t.Current += r.Count
	case v.unclear:
		t.Unclear += r.Count
	case v.skipped:
		t.Skipped += r.Count
	default:
		t.Unstamped += r.Count
	}
}

func (t *Table) unverified(why reason, epoch, rows int64) {
	at := slices.IndexFunc(t.Unverified, func(u Unverified) bool { return u.Reason == why })
	if at < 0 {
		at = len(t.Unverified)
		t.Unverified = append(t.Unverified, Unverified{Reason: why, First: epoch, Last: epoch})
	}
	u := &t.Unverified[at]
	u.Rows, u.First, u.Last = u.Rows+rows, min(u.First, epoch), max(u.Last, epoch)
}

// add adds a table.
func (r *Report) add(t *Table) {
	slices.SortFunc(t.Unverified, func(a, b Unverified) int { return cmp.Compare(a.Reason, b.Reason) })
	r.Tables = append(r.Tables, t)
	r.Findings = append(r.Findings, t.findings...)
}

// Err returns a *FoundError or an *UnverifiedError, or nil if everything was verified.
func (r *Report) Err() error {
	if len(r.Findings) > 0 {
		transactions := make(map[evidence.Xid]bool)
		for _, f := range r.Findings {
			transactions[f.Xid] = true
		}
		return &FoundError{Transactions: len(transactions)}
	}
	var names []string
	for _, t := range r.Tables {
		if len(t.Unverified) > 0 || len(t.Problems) > 0 {
			names = append(names, t.Name)
		}
	}
	var rows, unstamped int64
	for _, t := range r.Tables {
		rows, unstamped = rows+t.Rows, unstamped+t.Unstamped
	}
	if len(names) > 0 || len(r.Tables) == 0 || rows > 0 && rows == unstamped {
		return &UnverifiedError{Tables: names}
	}
	return nil
}

// WriteJSON writes the report as JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	shown := *r
	if shown.Findings == nil {
		shown.Findings = []Finding{}
	}
	if shown.Tables == nil {
		shown.Tables = []*Table{}
	}
	return writeJSON(w, shown)
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// explanations say what the reasons mean.
var explanations = map[reason]string{
	copiedLedger: "the next grant was recorded in another database, of which this one is a restored copy",
	pruned:       "the ledger begins with a later epoch",
	beforeGuard:  "they were written before the guard was made, or restored",
	rewritten:    "the table was rewritten (ALTER TABLE, VACUUM FULL), which may have written them again",
	unguarded:    "they were written when nothing stamped the table's rows, or may have been",
	wraparound:   "so many transactions have run since that the ids of the rows may mean others",
}

// mostShown is how many findings the text names for each table. JSON has all of them.
const mostShown = 50

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	if len(r.Tables) == 0 {
		_, err := fmt.Fprintln(w, "no table is guarded with a stamp: fencepost guard add --resource RESOURCE --table TABLE --stamp COLUMN --dsn DSN guards one")
		return err
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "TABLE\tRESOURCE\tROWS\tVERIFIED\tCURRENT\tUNCLEAR\tUNSTAMPED\tNOT VERIFIED\tFINDINGS")
	for _, t := range r.Tables {
		var not int64
		for _, u := range t.Unverified {
			not += u.Rows
		}
		fmt.Fprintf(out, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", t.Name, t.Resource, t.Rows, t.Verified, t.Current, t.Unclear, t.Unstamped, not, len(t.findings))
	}
	if err := out.Flush(); err != nil {
		return err
	}
	var text strings.Builder
	for _, t := range r.Tables {
		t.write(&text)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// write writes what is to be said about a table, a line each.
func (t *Table) write(w io.Writer) {
	for i, f := range t.findings {
		if i == mostShown {
			fmt.Fprintf(w, "FOUND %s: %d more transactions: --json names them\n", t.Name, len(t.findings)-i)
			break
		}
		fmt.Fprintf(w, "FOUND %s: %s\n", t.Name, f)
	}
	for _, p := range t.Problems {
		fmt.Fprintf(w, "NOT VERIFIED %s: %s\n", t.Name, p)
	}
	for _, u := range t.Unverified {
		fmt.Fprintf(w, "NOT VERIFIED %s: %d rows of %s: %s\n", t.Name, u.Rows, epochs(u.First, u.Last), explanations[u.Reason])
	}
	if t.Unclear > 0 {
		fmt.Fprintf(w, "UNCLEAR %s: %d rows: verified, unless they were written after a savepoint by a transaction that was open when the next epoch was granted\n", t.Name, t.Unclear)
	}
}

// String describes a finding.
func (f Finding) String() string {
	committed := ""
	if f.Committed != nil {
		committed = ", committed " + stamp(*f.Committed) + ","
	}
	if f.Kind == neverGranted {
		return fmt.Sprintf("transaction %d%s wrote %d rows under epoch %d of resource %q, which was granted to nobody", f.Xid, committed, f.Rows, f.Epoch, f.Resource)
	}
	to := "nobody"
	if f.NextWorker != "" {
		to = fmt.Sprintf("%q", f.NextWorker)
	}
	return fmt.Sprintf("transaction %d%s wrote %d rows under epoch %d of resource %q after the grant of epoch %d to %s at %s",
		f.Xid, committed, f.Rows, f.Epoch, f.Resource, f.Next, to, stamp(*f.NextAt))
}

func epochs(first, last int64) string {
	if first == last {
		return fmt.Sprintf("epoch %d", first)
	}
	return fmt.Sprintf("epochs %d to %d", first, last)
}

// stamp shows a time.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") }

// list shows names, and not too many of them.
func list(names []string) string {
	const most = 10
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
