package evidence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing/evidence"
)

// Refusal counts statements that were refused or discarded and are alike. Its JSON is a contract.
type Refusal struct {
	// Database is the name that the database had, if it has another one now: it is then a copy, or
	// was renamed.
	Database    string    `json:"database,omitempty"`
	Resource    string    `json:"resource"` // empty: the connections named none, and so no worker
	Worker      string    `json:"worker"`
	Kind        string    `json:"kind"` // discarded, or why they were refused
	Write       bool      `json:"write"`
	SQLState    string    `json:"sqlstate"`
	Fingerprint string    `json:"fingerprint"` // empty: the statements are not distinguished
	Count       int64     `json:"count"`
	First       time.Time `json:"first"`
	Last        time.Time `json:"last"`
	// The rest is that of the latest.
	Epoch         int64  `json:"epoch"`
	CurrentEpoch  int64  `json:"current_epoch"`
	CurrentWorker string `json:"current_worker"`
	User          string `json:"user"`
	Client        string `json:"client"`
	Proxy         string `json:"proxy"`
	Statement     string `json:"statement"` // without literals
}

// History is who led when, and what was refused. Its JSON is a contract.
type History struct {
	Terms    []Term    `json:"terms"`
	Refusals []Refusal `json:"refusals"`
	// NoRefusals says why nothing is known of refusals, if that is so.
	NoRefusals string `json:"no_refusals,omitempty"`
}

// Look returns the history of a database, as far as the options name it.
func Look(ctx context.Context, conn *pgx.Conn, o Options) (*History, error) {
	s, err := evidence.NewSession(ctx, conn)
	if err != nil {
		return nil, err
	}
	if o.Resource != "" {
		if err := known(ctx, s, o.Resource); err != nil {
			return nil, err
		}
	}
	h := &History{Refusals: []Refusal{}}
	if h.Terms, err = terms(ctx, s, o); err != nil {
		return nil, err
	}
	rows, err := s.Rejections(ctx, evidence.Wanted{Resource: o.Resource, Worker: o.Worker, Since: o.Since})
	if errors.Is(err, evidence.ErrNoTable) {
		h.NoRefusals = err.Error() + ": run fencepost migrate --dsn DSN"
		return h, nil
	} else if err != nil {
		return nil, err
	}
	counts, err := s.RefusedWrites(ctx)
	for i := range h.Terms {
		count := counts[evidence.Epoch{Resource: h.Terms[i].Resource, Number: h.Terms[i].Epoch}]
		h.Terms[i].Refused = &count
	}
	for _, r := range rows {
		h.Refusals = append(h.Refusals, refusalOf(r))
	}
	slices.SortFunc(h.Refusals, func(a, b Refusal) int {
		return cmp.Or(a.Last.Compare(b.Last), cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return h, err
}

func refusalOf(r evidence.Rejections) Refusal {
	return Refusal{
		Database: r.Database, Resource: r.Resource, Worker: r.Worker, Kind: r.Kind, Write: r.Write, SQLState: r.SQLState, Fingerprint: r.Fingerprint,
		Count: r.Count, First: r.First, Last: r.Last,
		Epoch: r.Latest.Epoch, CurrentEpoch: r.Latest.Current, CurrentWorker: r.Latest.Holder,
		User: r.User, Client: r.Latest.Client, Proxy: r.Latest.Proxy, Statement: r.Latest.Statement,
	}
}

// WriteJSON writes the history as JSON.
func (h *History) WriteJSON(w io.Writer) error { return writeJSON(w, h) }

// WriteText writes the history for people: the latest refusals, not all.
func (h *History) WriteText(w io.Writer) error {
	if err := writeTerms(w, h.Terms); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if h.NoRefusals != "" {
		_, err := fmt.Fprintln(w, "nothing is known of refusals: "+h.NoRefusals)
		return err
	}
	return writeRefusals(w, h.Refusals)
}

// writeRefusals writes the latest refusals in a table.
func writeRefusals(w io.Writer, all []Refusal) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no such refusal is recorded")
		return err
	}
	if more := len(all) - mostShown; more > 0 {
		fmt.Fprintf(w, "%d earlier rows are not shown: --json has them\n", more)
		all = all[more:]
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "FIRST REFUSED\tLAST REFUSED\tCOUNT\tRESOURCE\tWORKER\tROLE\tEPOCH\tCURRENT\tWHAT\tSQLSTATE\tSTATEMENT")
	for _, r := range all {
		what := " read"
		if r.Write {
			what = " write"
		}
		if r.Database != "" {
			what += fmt.Sprintf(" in %q", r.Database)
		}
		fmt.Fprintf(out, "%s\t%s\t%d\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", stamp(r.First), stamp(r.Last), r.Count,
			quoted(r.Resource), quoted(r.Worker), quoted(r.User), r.Epoch, r.CurrentEpoch, r.Kind+what, r.SQLState, statement(r))
	}
	return out.Flush()
}

// quoted shows a name, or that there is none.
func quoted(name string) string {
	if name == "" {
		return "-"
	}
	return fmt.Sprintf("%q", name)
}

// statement shows the beginning of a statement.
func statement(r Refusal) string {
	const longest = 80
	if r.Statement == "" {
		return "(various, or unreadable)"
	}
	shown := r.Statement
	if utf8.RuneCountInString(shown) > longest {
		shown = string([]rune(shown)[:longest]) + " ..."
	}
	return strings.Map(func(c rune) rune { // nothing of it may act on a terminal
		if c < ' ' || c >= 0x7f && c < 0xa0 {
			return '?'
		}
		return c
	}, shown)
}
