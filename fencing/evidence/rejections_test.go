package evidence_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing/evidence"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// refused is a row of the present minute.
func refused(worker, statement string) evidence.Rejections {
	now := time.Now()
	return evidence.Rejections{
		Minute: now.Truncate(time.Minute), Resource: "billing", Worker: worker, User: "app", Kind: "stale", Write: true, SQLState: "ZF001", Fingerprint: "f",
		Count: 2, First: now, Last: now, Latest: evidence.Rejection{Epoch: 1, Current: 2, Statement: statement},
	}
}

// TestCharactersThatTheDatabaseLacks do not keep a batch from being recorded.
func TestCharactersThatTheDatabaseLacks(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	latin := db + "_latin"
	s.Exec(t, pgtest.Superuser, "postgres", "CREATE DATABASE "+latin+" TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
	t.Cleanup(func() { s.Exec(t, pgtest.Superuser, "postgres", "DROP DATABASE "+latin+" WITH (FORCE)") })
	for name, want := range map[string][]string{db: {"w", "SELECT '\u20ac' ?"}, latin: {"w", `SELECT '\u20ac' \ufffd`}} {
		conn := s.Connect(t, pgtest.Superuser, name)
		if name == latin {
			s.Exec(t, pgtest.Superuser, latin, "CREATE SCHEMA fencepost", `CREATE TABLE fencepost.rejections (minute timestamptz, database text, resource text, worker text,
				kind text, write boolean, sqlstate text, fingerprint text, count bigint, first_at timestamptz, last_at timestamptz, epoch bigint, current_epoch bigint,
				current_worker text, login_role text, client text, proxy text, statement text, CONSTRAINT rejections_pkey PRIMARY KEY (minute, database, resource, worker, login_role, kind, write, sqlstate, fingerprint))`)
		}
		if _, err := conn.Exec(t.Context(), "SET client_encoding = 'UTF8'"); err != nil { // as the control role does
			t.Fatal(err)
		}
		rows := []evidence.Rejections{refused("w", "SELECT '\u20ac' \xff")}
		if err := evidence.Record(t.Context(), conn, rows); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := make([]string, 2)
		if err := conn.QueryRow(t.Context(), "SELECT worker, statement FROM fencepost.rejections").Scan(&got[0], &got[1]); err != nil || got[0] != want[0] || got[1] != want[1] {
			t.Errorf("%s: recorded is %q, want %q: %v", name, got, want, err)
		}
	}
}

// breaking is a connection that breaks when it has sent a COMMIT: nothing is received from then on.
type breaking struct {
	net.Conn
	broken atomic.Bool
}

func (b *breaking) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("commit\x00")) {
		b.broken.Store(true)
	}
	return b.Conn.Write(p)
}

func (b *breaking) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if b.broken.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// TestABrokenCommitIsUncertain: the rows may be there, so they must not be recorded again.
func TestABrokenCommitIsUncertain(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	cfg, err := pgx.ParseConfig(s.DSN(pgtest.Control, db))
	if err != nil {
		t.Fatal(err)
	}
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return &breaking{Conn: conn}, err
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := evidence.Record(t.Context(), conn, []evidence.Rejections{refused("w", "s")}); !errors.Is(err, evidence.ErrUncertain) {
		t.Errorf("the error is %v", err)
	}
	if conn, err = pgx.ConnectConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := evidence.Record(ctx, conn, []evidence.Rejections{refused("w", "s")}); err == nil || errors.Is(err, evidence.ErrUncertain) {
		t.Errorf("before the COMMIT, the error is %v", err)
	}
}

// TestTheLatestOfTwoBatchesIsKept, in whatever order they are recorded.
func TestTheLatestOfTwoBatchesIsKept(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	conn := s.Connect(t, pgtest.Control, s.Database(t))
	early, late := refused("w", "early"), refused("w", "late")
	early.First, early.Last = early.Minute.Add(time.Second), early.Minute.Add(2*time.Second)
	late.First, late.Last = late.Minute.Add(3*time.Second), late.Minute.Add(4*time.Second)
	early.Minute = late.Minute
	other := refused("w", "of another worker")
	other.Worker = "v"
	for _, batch := range [][]evidence.Rejections{{late}, {early, other}, {early}} {
		if err := evidence.Record(t.Context(), conn, batch); err != nil {
			t.Fatal(err)
		}
	}
	session, err := evidence.NewSession(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	all, err := session.Rejections(t.Context(), evidence.Wanted{Resource: "billing", Worker: "w", Since: late.Last})
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	if r := all[0]; r.Count != 6 || !r.First.Equal(early.First) || !r.Last.Equal(late.Last) || r.Latest != late.Latest || r.Database != "" {
		t.Errorf("the row is %+v", r)
	}
	if all, err = session.Rejections(t.Context(), evidence.Wanted{Since: late.Last.Add(time.Hour)}); err != nil || len(all) != 0 {
		t.Errorf("an hour later: %+v, %v", all, err)
	}
}
