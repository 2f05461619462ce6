package evidence

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/evidence"
)

// Term is the time during which an epoch was the current one. Its JSON is a contract.
type Term struct {
	Resource string     `json:"resource"`
	Epoch    int64      `json:"epoch"`
	Worker   string     `json:"worker,omitempty"` // empty: the epoch was given to no one
	From     time.Time  `json:"from"`
	To       *time.Time `json:"to,omitempty"` // of the next grant; nil: the epoch is current
	Source   string     `json:"source"`       // the lease service, or operator
	Token    int64      `json:"token,omitempty"`
	// Copied: the ledger is that of a restored copy; the term was another database's.
	Copied bool `json:"copied,omitempty"`
	// Proxy is the one through which the worker was granted the epoch, as far as that is known.
	Proxy string `json:"proxy,omitempty"`
	// Refused is how many writes were refused or discarded in it, to the minute; nil if they were not counted.
	Refused *int64 `json:"refused_writes,omitempty"`
	// Ended says how it ended: the kind of the order that has ended it, or what the proxy of the next worker has seen
	// of it (fencing.Ending); "" if it is current, was given to nobody, or that is not known. EndedBy and Reason are
	// those of the order.
	Ended   string `json:"ended,omitempty"`
	EndedBy string `json:"ended_by,omitempty"`
	Reason  string `json:"reason,omitempty"`
	// Gap is how many seconds of it, at its end, no worker was confirmed as the leader; nil if that is not known.
	Gap *float64 `json:"gap_seconds,omitempty"`
}

// terms returns the terms in the ledger of a database, by the time of their grants. Since leaves
// out those that ended earlier.
func terms(ctx context.Context, s *evidence.Session, o Options) ([]Term, error) {
	ledger, err := s.Ledger(ctx)
	if err != nil {
		return nil, err
	}
	terms := []Term{}
	for resource, grants := range ledger {
		if o.Resource == "" || resource == o.Resource {
			terms = append(terms, termsOf(grants, o)...)
		}
	}
	slices.SortFunc(terms, func(a, b Term) int {
		return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Epoch, b.Epoch))
	})
	return terms, nil
}

// termsOf returns the terms of one resource that the options name.
func termsOf(grants []evidence.Grant, o Options) (terms []Term) {
	for i, g := range grants {
		t := Term{Resource: g.Resource, Epoch: g.Epoch, Worker: g.Worker, From: g.At, Source: g.Source, Copied: g.Copied, Proxy: g.Proxy}
		if g.Source == "token" {
			t.Token = g.Index
		}
		if i+1 < len(grants) {
			t.end(&grants[i+1])
		}
		if (o.Worker == "" || g.Worker == o.Worker) && (t.To == nil || !t.To.Before(o.Since)) {
			terms = append(terms, t)
		}
	}
	return terms
}

// end says how the term has ended, by the grant of the next epoch.
func (t *Term) end(next *evidence.Grant) {
	t.To = &next.At
	if next.Gap > 0 {
		gap := next.Gap.Seconds()
		t.Gap = &gap
	}
	switch {
	case t.Worker == "":
	case next.Order.Kind != "":
		t.Ended, t.EndedBy, t.Reason = next.Order.Kind, next.Order.AskedBy, next.Order.Reason
	default:
		t.Ended = string(next.Ended)
	}
}

// endings say for people how terms ended.
var endings = map[string]string{
	string(fencing.EndingLeft): "its worker or its proxy left", string(fencing.EndingSilence): "its worker was silent",
	string(fencing.EndingExpired): "its lease expired", string(fencing.EndingGone): "its proxy was gone",
	"evict": "evicted", "pause": "paused", "remove": "removed", "raise": "its epoch was raised", "handover": "handed over",
}

// ending says for people how the term ended, with a dash if that is not known.
func (t *Term) ending() string {
	text := cmp.Or(endings[t.Ended], t.Ended, "-")
	if t.EndedBy != "" {
		text += fmt.Sprintf(" by %q", t.EndedBy)
	}
	if t.Reason != "" {
		text += fmt.Sprintf(": %q", t.Reason)
	}
	return text
}

// writeTerms writes terms for people.
func writeTerms(w io.Writer, terms []Term) error {
	if len(terms) == 0 {
		_, err := fmt.Fprintln(w, "the ledger has no such term")
		return err
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "FROM\tTO\tRESOURCE\tEPOCH\tWORKER\tPROXY\tSOURCE\tTOKEN\tREFUSED\tGAP\tENDED")
	for _, t := range terms {
		to, worker, token, refused, gap := "(current)", "(nobody)", "-", "-", "-"
		if t.To != nil {
			to = stamp(*t.To)
		}
		if t.Worker != "" {
			worker = fmt.Sprintf("%q", t.Worker)
		}
		if t.Token != 0 {
			token = fmt.Sprint(t.Token)
		}
		if t.Refused != nil {
			refused = fmt.Sprint(*t.Refused)
		}
		if t.Gap != nil {
			gap = fmt.Sprintf("%.1fs", *t.Gap)
		}
		fmt.Fprintf(out, "%s\t%s\t%q\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			stamp(t.From), to, t.Resource, t.Epoch, worker, quoted(t.Proxy), t.Source, token, refused, gap, t.ending())
	}
	return out.Flush()
}
