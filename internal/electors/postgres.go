package electors

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/postgres"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/internal/config"
)

// Postgres keeps the leases next to the fence, in each database. It has no
// settings.
var Postgres = Elector{
	Provider: config.Provider{Name: "postgres", Validate: func(*config.Config, config.Fault) {}},
	Open: func(_ config.Config, _ string, log *zap.Logger) (Service, error) {
		return postgresService{log}, nil
	},
	PerDatabase: true,
}

type postgresService struct{ log *zap.Logger }

func (s postgresService) Database(_ string, db *fence.Database) (elector.Provider, error) {
	return postgres.New(postgres.Config{Pool: db.Pool(), Logger: s.log})
}

// Healthy returns nil: whether Postgres is reachable is tested as the upstream.
func (s postgresService) Healthy() error { return nil }

// Check returns nil: whether the lease table can be used shows with the fence.
func (s postgresService) Check(context.Context, []time.Duration) error { return nil }

func (s postgresService) Position(ctx context.Context, conn *pgx.Conn, _ []time.Duration) (elector.Position, error) {
	return postgres.Position(ctx, conn)
}

func (s postgresService) BumpGeneration(ctx context.Context, name string, db *fence.Database) (string, error) {
	instanceID, err := postgres.BumpGeneration(ctx, db.Durable())
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("database %s: started a new generation of the elector, %s", name, instanceID), nil
}

func (s postgresService) Close() error { return nil }
