package store_test

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestWhoWaitsForWhom covers direct waits and waits through another backend.
func TestWhoWaitsForWhom(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	db := pg.Database(t)
	st := open(t, pg, db)
	var conns [4]*pgx.Conn
	var pids [4]uint32
	for i := range conns {
		conns[i] = pg.Connect(t, pgtest.App, db)
		pids[i] = conns[i].PgConn().PID()
	}
	holder, second, third, idle := pids[0], pids[1], pids[2], pids[3]
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	defer func() { cancel(); <-done; <-done }()
	lock := func(conn *pgx.Conn, key int) { // waits until the test ends
		_, _ = conn.Exec(ctx, "SELECT pg_advisory_lock($1)", key)
	}
	lock(conns[0], 1)
	lock(conns[1], 2)
	for i, key := range []int{1, 2} { // the second waits for the first, the third for the second
		go func() { lock(conns[i+1], key); done <- struct{}{} }()
		fixture.Eventually(t, "a backend to wait", func() bool {
			return pgtest.Ask[int](t, pg, db, "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = $1", int32(pids[i+1])) == 1
		})
	}
	for _, c := range []struct{ waiting, holding, want []uint32 }{
		{[]uint32{second, third, idle}, []uint32{holder}, []uint32{second, third}},
		{[]uint32{third}, []uint32{second, idle}, []uint32{third}},
		{[]uint32{second}, []uint32{third, idle}, nil},
		{[]uint32{idle, 0}, []uint32{holder, second, third}, nil},
	} {
		got, err := st.WaitFor(t.Context(), c.waiting, c.holding)
		slices.Sort(got)
		slices.Sort(c.want)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("of %d, %d wait for %d, %v; want %d", c.waiting, got, c.holding, err, c.want)
		}
	}
}
