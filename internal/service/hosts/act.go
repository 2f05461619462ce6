package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/upstream"
)

// Act opens the fence of one database at the primary, as the control role, and calls do, for a
// command that does its work and ends. If there are several hosts, they are looked at meanwhile:
// when another one is the primary, do's connections are closed and its context ends. What do writes
// to out becomes the command's output unless that host may not have been the primary until the end.
func Act(ctx context.Context, cfg config.Config, database string, aim Aim, do func(ctx context.Context, db *fence.Database, out io.Writer) error) error {
	servers, err := look(ctx, cfg, aim.At)
	if err != nil {
		return err
	}
	primary, err := aim.take(ctx, servers)
	if err != nil {
		return err
	}
	c := open(cfg, servers, database, zap.NewNop())
	c.Primary = func(context.Context) (store.Server, error) { return server(primary), context.Cause(primary.Tenure) }
	c.Blocked = Waiting(aim.Notes)
	var out bytes.Buffer
	done := within(ctx, servers, primary, func(ctx context.Context) error {
		db, err := fence.Open(ctx, c)
		if err != nil {
			return err
		}
		defer db.Close()
		return do(ctx, db, &out)
	})
	if err := aim.confirm(ctx, servers, primary, done); err != nil && (done == nil || !errors.Is(err, done)) {
		return err
	} else if _, failed := out.WriteTo(aim.Out); failed != nil {
		return errors.Join(err, fmt.Errorf("write the output: %w", failed))
	} else {
		return err
	}
}

// Waiting returns what a command sets as fence.Config.Blocked, to say on out what it waits for.
func Waiting(out io.Writer) func(resource string, by []string) {
	return func(_ string, by []string) {
		if len(by) > 0 {
			fmt.Fprintln(out, "waiting: "+strings.Join(by, "; "))
		}
	}
}

// within calls do with a context that ends with the tenure of the primary, and looks at the hosts
// meanwhile.
func within(ctx context.Context, servers *upstream.Servers, primary upstream.Primary, do func(ctx context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	var looks sync.WaitGroup
	looks.Go(func() { servers.Run(ctx) })
	defer looks.Wait()
	defer end(nil)
	defer context.AfterFunc(primary.Tenure, func() { end(context.Cause(primary.Tenure)) })()
	return do(ctx)
}
