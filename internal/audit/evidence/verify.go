package evidence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing/evidence"
)

// Options say what of a database is of interest. Empty fields do not restrict it.
type Options struct {
	Resource string
	Worker   string // not for Verify
	// Table is a stamped table, with its schema and the quotes that SQL needs, or one of its
	// partitions and children.
	Table string
	Since time.Time // Verify: epochs that ended earlier are not checked
}

// FoundError means that rows were written under an epoch that had ended, or that was not
// granted.
type FoundError struct{ Transactions int }

func (e *FoundError) Error() string {
	return fmt.Sprintf("%d transactions wrote rows under epochs that were not theirs: docs/evidence.md says how to look into them", e.Transactions)
}

// UnverifiedError means that nothing was found, and that rows or tables could not be verified. Without tables, there
// was nothing that could be: no table is stamped, or no row has a stamp.
type UnverifiedError struct{ Tables []string }

func (e *UnverifiedError) Error() string {
	if len(e.Tables) == 0 {
		return "nothing was verified: no row has the stamp of a guard"
	}
	return fmt.Sprintf("nothing was found, but %d tables could not be verified completely: %s", len(e.Tables), list(e.Tables))
}

// Verify looks at the stamped tables of a database. Its error says that it could not look at
// all; the report has the rest.
func Verify(ctx context.Context, conn *pgx.Conn, o Options) (*Report, error) {
	s, err := evidence.NewSession(ctx, conn)
	if err != nil {
		return nil, err
	}
	tables, err := s.Tables(ctx)
	if err != nil {
		return nil, err
	}
	if o.Resource != "" {
		if err := known(ctx, s, o.Resource); err != nil {
			return nil, err
		}
		tables = slices.DeleteFunc(tables, func(t evidence.Table) bool { return t.Resource != o.Resource })
	}
	if o.Table != "" {
		tables = slices.DeleteFunc(tables, func(t evidence.Table) bool { return t.Name != o.Table && t.Root != o.Table })
		if len(tables) == 0 {
			return nil, fmt.Errorf("table %s is not guarded with a stamp: fencepost guard list shows those that are", o.Table)
		}
	}
	report := &Report{}
	for _, t := range tables {
		if t.Partitioned {
			continue
		}
		r, err := verify(ctx, s, t, o.Since)
		if err != nil {
			return nil, err
		}
		if t.Alike && t.Unreadable == "" && len(r.Problems) == 1 && r.Rows == r.Unstamped {
			continue // none of its rows was ever stamped
		}
		report.add(r)
	}
	return report, nil
}

// known returns an error if there is no such resource.
func known(ctx context.Context, s *evidence.Session, resource string) error {
	names, err := s.Resources(ctx)
	if err == nil && !slices.Contains(names, resource) {
		err = fmt.Errorf("this database has no resource %q: it has %s", resource, list(names))
	}
	return err
}

// verify looks at one table.
func verify(ctx context.Context, s *evidence.Session, t evidence.Table, since time.Time) (*Table, error) {
	r := newTable(t)
	switch {
	case t.Lost:
		r.problem("it is recorded as guarded, and has no guard: guard it again, or run fencepost guard remove --table TABLE --dsn DSN")
		return r, nil
	case t.Unreadable != "":
		r.problem(t.Unreadable)
		return r, nil
	case t.Bare:
		r.problem(fmt.Sprintf("nothing stamps its rows any more, as after ALTER TABLE ... DETACH PARTITION: guard it by its own name with --stamp %s; "+
			"if it need not be verified any more, run fencepost guard remove --table TABLE --dsn DSN for it, and rename that column", t.Stamp))
	case !t.InForce:
		r.problem("the trigger that stamps its rows is missing or disabled: run fencepost guard add again")
	}
	for _, name := range t.LaterTriggers {
		r.problem(fmt.Sprintf("trigger %s fires after the one that stamps its rows, and may change the stamp", name))
	}
	ledger, err := s.Ledger(ctx)
	if err != nil {
		return nil, err
	}
	j := newJudge(ledger[t.Resource], t.Next, since)
	groups, err := read(ctx, s, t, j.settled())
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("table %s was not read to its end: %w", t.Name, errors.Join(ctx.Err(), err))
		}
		r.problem(err.Error())
		return r, nil
	}
	after, err := s.Facts(ctx, t)
	if err != nil || after.Rewritten != t.Rewritten || after.Altered != t.Altered {
		r.problem("it was changed while it was read: verify it again")
	}
	granted, err := grantedSince(ctx, s, t.Resource)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		r.count(g, j.rows(t.Facts, g, granted))
	}
	return r, r.explain(ctx, s)
}

// read returns the rows of a table in groups, each of them once.
func read(ctx context.Context, s *evidence.Session, t evidence.Table, settled evidence.Settled) ([]evidence.Rows, error) {
	type key struct {
		stamped, hasXid bool
		stamp           int64
		xid             evidence.Xid
	}
	counts := make(map[key]int64)
	err := s.Read(ctx, t, settled, func(r evidence.Rows) {
		k := key{stamped: r.Stamp != nil, hasXid: r.Xid != nil}
		if k.stamped {
			k.stamp = *r.Stamp
		}
		if k.hasXid {
			k.xid = *r.Xid
		}
		counts[k] += r.Count
	})
	groups := make([]evidence.Rows, 0, len(counts))
	for k, n := range counts {
		g := evidence.Rows{Count: n}
		if k.stamped {
			g.Stamp = &k.stamp
		}
		if k.hasXid {
			g.Xid = &k.xid
		}
		groups = append(groups, g)
	}
	return groups, err
}

// grantedSince returns the epochs that workers of a resource have been granted by now: grants
// continue while a table is read.
func grantedSince(ctx context.Context, s *evidence.Session, resource string) (map[int64]bool, error) {
	ledger, err := s.Ledger(ctx)
	if err != nil {
		return nil, err
	}
	granted := make(map[int64]bool)
	for _, g := range ledger[resource] {
		granted[g.Epoch] = g.Worker != ""
	}
	return granted, nil
}

// explain adds to the findings when their transactions were committed, and puts them in order.
func (t *Table) explain(ctx context.Context, s *evidence.Session) error {
	for i := range t.findings {
		f := &t.findings[i]
		at, ok, err := s.Committed(ctx, f.Xid)
		if err != nil {
			return err
		}
		if ok {
			f.Committed = &at
		}
	}
	slices.SortFunc(t.findings, func(a, b Finding) int { return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Xid, b.Xid)) })
	return nil
}
