package evidence

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/fencepost/fencepost/fencing/evidence"
)

// Term is the time during which an epoch was the current one. Its JSON is a contract.
type Term struct {
	Resource string     `json:"resource"`
	Epoch    int64      `json:"epoch"`
	Worker   string     `json:"worker,omitempty"` // empty: the epoch was given to nobody
	From     time.Time  `json:"from"`
	To       *time.Time `json:"to,omitempty"` // of the next grant; nil: the epoch is current
	Source   string     `json:"source"`       // the lease service, or operator
	Token    int64      `json:"token,omitempty"`
	// Copied: the ledger is that of a restored copy; the term was another database's.
	Copied bool `json:"copied,omitempty"`
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
		t := Term{Resource: g.Resource, Epoch: g.Epoch, Worker: g.Worker, From: g.At, Source: g.Source, Copied: g.Copied}
		if g.Source == "token" {
			t.Token = g.Index
		}
		if i+1 < len(grants) {
			t.To = &grants[i+1].At
		}
		if (o.Worker == "" || g.Worker == o.Worker) && (t.To == nil || !t.To.Before(o.Since)) {
			terms = append(terms, t)
		}
	}
	return terms
}

// writeTerms writes terms for people.
func writeTerms(w io.Writer, terms []Term) error {
	if len(terms) == 0 {
		_, err := fmt.Fprintln(w, "the ledger has no such term")
		return err
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "FROM\tTO\tRESOURCE\tEPOCH\tWORKER\tSOURCE\tTOKEN")
	for _, t := range terms {
		to, worker, token := "(current)", "(nobody)", "-"
		if t.To != nil {
			to = stamp(*t.To)
		}
		if t.Worker != "" {
			worker = fmt.Sprintf("%q", t.Worker)
		}
		if t.Token != 0 {
			token = fmt.Sprint(t.Token)
		}
		fmt.Fprintf(out, "%s\t%s\t%q\t%d\t%s\t%s\t%s\n", stamp(t.From), to, t.Resource, t.Epoch, worker, t.Source, token)
	}
	return out.Flush()
}
