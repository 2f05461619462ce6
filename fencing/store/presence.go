package store

import (
	"context"
	"fmt"
)

// application is the application_name of connections of the control role. Those of a proxy with a
// presence id have that id after it.
const application = "fencepost"

func applicationOf(presenceID string) string { return application + " " + presenceID }

// PresenceID returns that of the configuration.
func (s *Store) PresenceID() string { return s.cfg.PresenceID }

// Gone reports whether the proxy with this presence id has no connection to the server, to whatever
// database. Connections of roles without the rights of the schema's owner do not count, whatever
// they call themselves.
func (s *Store) Gone(ctx context.Context, presenceID string) (gone bool, err error) {
	err = s.free.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity a JOIN pg_namespace n ON n.nspname = 'fencepost'
		WHERE a.application_name = $1 AND pg_has_role(a.usesysid, n.nspowner, 'USAGE'))`, applicationOf(presenceID)).Scan(&gone)
	if err != nil {
		return false, fmt.Errorf("look for the connections of another proxy: %w", err)
	}
	return gone, nil
}
