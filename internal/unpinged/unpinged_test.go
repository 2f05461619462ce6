package unpinged_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/unpinged"
)

func TestOnlyABrokenConnectionIsAReasonToRepeat(t *testing.T) {
	t.Parallel()
	broken := errors.New("unexpected EOF")
	for _, c := range []struct {
		name  string
		first error
		calls int
	}{
		{"it passes", nil, 1},
		{"the server refuses it", &pgconn.PgError{Code: "42P01"}, 1},
		{"the server has ended the connection", &pgconn.PgError{Code: "57P01"}, 2},
		{"the connection is broken", broken, 2},
	} {
		calls := 0
		err := unpinged.Run(t.Context(), func(ctx context.Context) error {
			calls++
			if first := calls == 1; unpinged.Marked(ctx) != first {
				t.Errorf("%s: call %d, marked: %v", c.name, calls, !first)
			}
			if calls == 1 {
				return c.first
			}
			return nil
		})
		if want := c.first; c.calls == 2 && err != nil || c.calls == 1 && !errors.Is(err, want) || calls != c.calls {
			t.Errorf("%s: %d calls, %v", c.name, calls, err)
		}
	}
	ended, end := context.WithCancel(t.Context())
	calls := 0
	err := unpinged.Run(ended, func(context.Context) error { calls++; end(); return broken })
	if !errors.Is(err, broken) || calls != 1 {
		t.Errorf("after the end of the context: %d calls, %v", calls, err)
	}
}
