package connection

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

// TestChannelBinding: it is offered where the client sees the server's own
// certificate, and where it is not, each client either authenticates without it
// or is refused with a word on what to do.
func TestChannelBinding(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		upstream, same bool
	}{"another certificate": {true, false}, "the same certificate": {true, true}, "postgres without TLS": {false, false}} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := newSides(t, sidesConfig{
				major: 18,
				client: func(cfg *pgtls.ClientsConfig) {
					if _, _, pair := pgtest.SharedTLS(t, 0); c.same {
						cfg.CertFile, cfg.KeyFile = pair.CertFile, pair.KeyFile
					}
				},
				plainUpstream: !c.upstream,
			})
			for _, binding := range []string{"disable", "prefer", "require"} {
				s.checkBinding(t, true, binding, c.upstream, c.same)
			}
			s.checkBinding(t, false, "prefer", c.upstream, c.same)
		})
	}
}

func (s *sides) checkBinding(t *testing.T, secured bool, binding string, upstream, same bool) {
	t.Helper()
	mode := "disable"
	if secured {
		mode = "require"
	}
	bound := secured && upstream && same
	missed := secured && upstream && !same
	settings := fmt.Sprintf("user=scram_user password=%s sslmode=%s channel_binding=%s", pgtest.Password, mode, binding)
	for driver, connect := range map[string]func() (string, error){
		"libpq": func() (string, error) { return psqlTLS(t, s.Addr, s.db, settings, "select session_user", s.libpq...) },
		"pgx":   func() (string, error) { return pgxUser(t, s, settings) },
	} {
		got, err := connect()
		what := fmt.Sprintf("%s, TLS %t, channel_binding=%s", driver, secured, binding)
		switch {
		case bound, binding == "disable", !missed && binding == "prefer":
			if err != nil || got != "scram_user" {
				t.Errorf("%s: %v: %s", what, err, got)
			}
		case binding == "require":
			if err == nil || !strings.Contains(got+fmt.Sprint(err), "channel binding") {
				t.Errorf("%s: %v: %s; want the client's own refusal", what, err, got)
			}
		case err == nil || !strings.Contains(got+fmt.Sprint(err), "SCRAM channel binding negotiation error"):
			t.Errorf("%s: %v: %s; want a refusal that says why", what, err, got)
		case driver != "pgx" && !strings.Contains(got, "channel_binding=disable"):
			t.Errorf("%s: %s; want a hint", what, got)
		}
	}
}

func pgxUser(t *testing.T, s *sides, settings string) (user string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	_, port, _ := net.SplitHostPort(s.Addr)
	conn, err := pgx.Connect(ctx, fmt.Sprintf("host=127.0.0.1 port=%s dbname=%s %s", port, s.db, settings))
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, "select session_user").Scan(&user)
	return user, err
}
