package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// pgxState returns the SQLSTATE of an error, "ok" for none.
func pgxState(err error) string {
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &pgErr):
		return pgErr.Code
	default:
		return err.Error()
	}
}

// pgxDetail returns everything that the driver knows about an error.
func pgxDetail(err error) any {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return fmt.Sprint(err)
	}
	return fields{
		"severity": pgErr.Severity, "code": pgErr.Code, "message": pgErr.Message, "detail": pgErr.Detail, "hint": pgErr.Hint,
		"position": pgErr.Position, "where": pgErr.Where, "table": pgErr.TableName, "constraint": pgErr.ConstraintName, "routine": pgErr.Routine,
	}
}

// pgxRunner holds the connection that stays open from the first scenario to the last,
// so that the worker does not leave between two of them.
type pgxRunner struct{ other *pgx.Conn }

func runPgx(part string) error {
	ctx := context.Background()
	switch part {
	case "follower":
		return pgxFollower(ctx)
	case "stale", "stale_transaction":
		return pgxStale(ctx, part)
	case "pool":
		return pgxPool(ctx)
	case "scenarios":
	default:
		return fmt.Errorf("unknown part %q", part)
	}
	other, err := pgx.Connect(ctx, "")
	if err != nil {
		return err
	}
	defer other.Close(ctx)
	r := pgxRunner{other}
	for _, s := range []struct {
		name string
		run  func(context.Context, *pgx.Conn) (outcome, error)
	}{
		{"types", r.types},
		{"prepared", r.prepared},
		{"batch", r.batch},
		{"batch_error", r.batchError},
		{"pipeline", r.pipeline},
		{"multi", r.multi},
		{"copy_in", r.copyIn},
		{"copy_error", r.copyError},
		{"copy_fail", r.copyFail},
		{"copy_out", r.copyOut},
		{"cursor", r.cursor},
		{"savepoint", r.savepoint},
		{"transaction", r.transaction},
		{"error", r.errors},
		{"cancel", r.cancel},
		{"notify", r.notify},
		{"large_object", r.largeObject},
		{"alone", r.alone},
	} {
		report(s.name, func(ctx context.Context) (outcome, error) { return r.fresh(ctx, s.run) })
	}
	return nil
}

// fresh runs a scenario with fresh data and a fresh connection.
func (r pgxRunner) fresh(ctx context.Context, run func(context.Context, *pgx.Conn) (outcome, error)) (outcome, error) {
	if _, err := r.other.Exec(ctx, "SELECT reset_all()"); err != nil {
		return outcome{}, fmt.Errorf("reset: %w", err)
	}
	conn, err := pgx.Connect(ctx, "")
	if err != nil {
		return outcome{}, err
	}
	defer conn.Close(ctx)
	return run(ctx, conn)
}

func pgxValue[T any](ctx context.Context, conn *pgx.Conn, sql string, args ...any) (value T, err error) {
	err = conn.QueryRow(ctx, sql, args...).Scan(&value)
	return value, err
}

// pgxOne checks that the connection still works.
func pgxOne(ctx context.Context, conn *pgx.Conn) any {
	one, err := pgxValue[int](ctx, conn, "SELECT 1")
	if err != nil {
		return err.Error()
	}
	return one
}

func (pgxRunner) types(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	rows, err := conn.Query(ctx, insertTyped, 7, int64(someInt64), "12.50", someText, true, []byte{0, 255, 39},
		someTime, map[string]any{"x": []any{1, nil}}, []int{1, 2, 3}, someUUID, nil)
	if err != nil {
		return outcome{}, err
	}
	defer rows.Close()
	var oids []uint32
	for _, f := range rows.FieldDescriptions() {
		oids = append(oids, f.DataTypeOID)
	}
	if !rows.Next() {
		return outcome{}, fmt.Errorf("no row: %w", rows.Err())
	}
	var v typedRow
	var list []int32
	err = rows.Scan(&v.i4, &v.i8, &v.num, &v.txt, &v.yes, &v.raw, &v.at, &v.doc, &list, &v.uid, &v.nothing)
	if err != nil {
		return outcome{}, err
	}
	rows.Close()
	return outcome{v.result(list), fields{"oids": oids, "tag": rows.CommandTag().String()}}, rows.Err()
}

func (pgxRunner) prepared(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	described, err := conn.Prepare(ctx, "add", addBalance)
	if err != nil {
		return outcome{}, err
	}
	var balances []int
	for i := 1; i <= 12; i++ {
		balance, err := pgxValue[int](ctx, conn, "add", i, i%3+1)
		if err != nil {
			return outcome{}, err
		}
		balances = append(balances, balance)
	}
	return outcome{fields{"balances": balances}, fields{"parameters": described.ParamOIDs}}, conn.Deallocate(ctx, "add")
}

func (pgxRunner) batch(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	var b pgx.Batch
	for i := range 50 {
		b.Queue(insertEvent, fmt.Sprint(i))
	}
	b.Queue(countEvents)
	results := conn.SendBatch(ctx, &b)
	defer results.Close()
	var affected int64
	for range 50 {
		tag, err := results.Exec()
		if err != nil {
			return outcome{}, err
		}
		affected += tag.RowsAffected()
	}
	var count int
	if err := results.QueryRow().Scan(&count); err != nil {
		return outcome{}, err
	}
	return outcome{fields{"affected": affected, "count": count}, nil}, results.Close()
}

func (pgxRunner) batchError(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	var b pgx.Batch
	b.Queue(insertEvent, "before")
	b.Queue(duplicate)
	b.Queue(insertEvent, "behind")
	results := conn.SendBatch(ctx, &b)
	_, first := results.Exec()
	_, second := results.Exec()
	_, third := results.Exec()
	closed := results.Close()
	rows, err := pgxValue[int](ctx, conn, countEvents)
	return outcome{
		fields{"sqlstate": pgxState(second), "rows": rows, "usable": pgxOne(ctx, conn)},
		fields{"first": pgxState(first), "second": pgxDetail(second), "third": pgxState(third), "closed": pgxState(closed)},
	}, err
}

func (pgxRunner) pipeline(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	p := conn.PgConn().StartPipeline(ctx)
	for _, sql := range []string{"INSERT INTO event (what) VALUES ('a')", "SELECT 1/0", "INSERT INTO event (what) VALUES ('b')"} {
		p.SendQueryParams(sql, nil, nil, nil, nil)
		if err := p.Sync(); err != nil {
			return outcome{}, err
		}
	}
	var results []string
	var seen []any
	state := "ok"
	for len(results) < 3 {
		got, err := p.GetResults()
		switch got := got.(type) {
		case nil:
			if err == nil {
				return outcome{}, errors.New("no result")
			}
			state = pgxState(err)
			seen = append(seen, pgxDetail(err))
		case *pgconn.ResultReader:
			tag, err := got.Close()
			state = pgxState(err)
			seen = append(seen, tag.String())
		case *pgconn.PipelineSync:
			results, state = append(results, state), "ok"
		}
	}
	if err := p.Close(); err != nil {
		return outcome{}, err
	}
	rows, err := pgxValue[int](ctx, conn, countEvents)
	return outcome{fields{"results": results, "rows": rows}, fields{"seen": seen}}, err
}

func (pgxRunner) multi(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	good, err := conn.PgConn().Exec(ctx, "SELECT 1; UPDATE account SET balance = 107 WHERE id = 1 RETURNING balance; SELECT 2").ReadAll()
	if err != nil || len(good) != 3 {
		return outcome{}, fmt.Errorf("%d results: %w", len(good), err)
	}
	bad, err := conn.PgConn().Exec(ctx, "BEGIN; INSERT INTO event (what) VALUES ('kept'); COMMIT; INSERT INTO event (what) VALUES ('lost'); SELECT 1/0").ReadAll()
	var tags []string
	for _, r := range append(good, bad...) {
		tags = append(tags, r.CommandTag.String())
	}
	number := func(i int) (n int) { _, _ = fmt.Sscan(string(good[i].Rows[0][0]), &n); return n }
	rows, countErr := pgxValue[int](ctx, conn, countEvents)
	return outcome{
		fields{"first": number(0), "balance": number(1), "last": number(2), "sqlstate": pgxState(err), "rows": rows},
		fields{"tags": tags, "error": pgxDetail(err)},
	}, countErr
}

func (pgxRunner) copyIn(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	copied, err := conn.CopyFrom(ctx, pgx.Identifier{"event"}, []string{"what"}, pgx.CopyFromSlice(1000, func(i int) ([]any, error) {
		return []any{fmt.Sprint(i)}, nil
	}))
	if err != nil {
		return outcome{}, err
	}
	rows, err := pgxValue[int](ctx, conn, countEvents)
	return outcome{result: fields{"copied": copied, "rows": rows}}, err
}

func (pgxRunner) copyError(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	_, failed := conn.PgConn().CopyFrom(ctx, strings.NewReader("1000\t1\n1\t1\n"), "COPY account FROM STDIN")
	rows, err := pgxValue[int](ctx, conn, countAccounts)
	return outcome{
		fields{"sqlstate": pgxState(failed), "rows": rows, "usable": pgxOne(ctx, conn)}, fields{"error": pgxDetail(failed)},
	}, err
}

// broken is a source of COPY data that fails after the first row.
type broken struct{ sent bool }

func (b *broken) Read(p []byte) (int, error) {
	if b.sent {
		return 0, errors.New("no more of it")
	}
	b.sent = true
	return copy(p, "lost\n"), nil
}

func (pgxRunner) copyFail(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	var source io.Reader = &broken{}
	_, failed := conn.PgConn().CopyFrom(ctx, source, "COPY event (what) FROM STDIN")
	rows, err := pgxValue[int](ctx, conn, countEvents)
	return outcome{fields{"rows": rows, "usable": pgxOne(ctx, conn)}, fields{"error": pgxDetail(failed)}}, err
}

func (pgxRunner) copyOut(ctx context.Context, conn *pgx.Conn) (outcome, error) {
	var text strings.Builder
	tag, err := conn.PgConn().CopyTo(ctx, &text, "COPY (SELECT * FROM account ORDER BY id) TO STDOUT")
	rows := strings.Split(strings.TrimSpace(text.String()), "\n")
	return outcome{fields{"rows": len(rows), "first": rows[0], "last": rows[len(rows)-1]}, fields{"tag": tag.String()}}, err
}
