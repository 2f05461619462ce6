package guard

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAServerThatHangsIsNamed freezes the server behind a connection.
func TestAServerThatHangsIsNamed(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	conn := s.Connect(t, pgtest.Superuser, s.Database(t))
	s.Freeze(t)
	err := bounded(context.Background(), time.Second, func(ctx context.Context) error {
		_, err := conn.Exec(ctx, "SELECT 1")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "Postgres did not answer for 1s") {
		t.Errorf("the error is %v", err)
	}
}
