package main

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/redistest"
)

func TestGenerationBumpWithRedis(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	server := redistest.Shared(t)
	byRedis := func(c *config.Config) {
		c.Election.Provider, c.Election.Redis.Address, c.Election.Redis.Prefix = "redis", server.Addr(), db
	}
	wantEpoch(t, lead(t, s, db, "a", byRedis), "1")
	env := map[string]string{
		"FENCEPOST_ELECTION_PROVIDER": "redis", "FENCEPOST_ELECTION_REDIS_ADDRESS": server.Addr(), "FENCEPOST_ELECTION_REDIS_PREFIX": db,
	}
	out := runCommand(t, env, "generation", "bump")
	marker, _ := server.Do(t, "HGET", db+"/.generation", "marker").(string)
	if out.code != exitOK || marker == "" || !strings.Contains(out.stdout, "redis: started a new generation under "+db+"/, "+marker) {
		t.Fatalf("code %d, the marker is %q\n%s%s", out.code, marker, out.stdout, out.stderr)
	}
	wantEpoch(t, lead(t, s, db, "b", byRedis), "2")
	if n := generation(t, s, db); n != 2 {
		t.Errorf("the award is of generation %d, want 2", n)
	}
	env["FENCEPOST_ELECTION_REDIS_ADDRESS"] = "127.0.0.1:1"
	out = runCommand(t, env, "generation", "bump")
	if out.code != exitFailure || !strings.Contains(out.stderr, "Redis at 127.0.0.1:1 cannot be reached") || !strings.Contains(out.stderr, "election.redis.address is right") {
		t.Errorf("without Redis: code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
}

// A Redis that was restored from an older state goes on by itself, because it has another
// replication id.
func TestARestoredRedisNeedsNoBump(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	server := redistest.Start(t)
	env := map[string]string{"FENCEPOST_ELECTION_PROVIDER": "redis", "FENCEPOST_ELECTION_REDIS_ADDRESS": server.Addr()}
	byRedis := func(c *config.Config) { c.Election.Provider, c.Election.Redis.Address = "redis", server.Addr() }
	wantEpoch(t, lead(t, s, db, "a", byRedis), "1")
	backup := server.Backup(t)
	wantEpoch(t, lead(t, s, db, "b", byRedis), "2")
	wantEpoch(t, lead(t, s, db, "c", byRedis), "3")
	server.Restore(t, backup)
	if got := belowFence(t, s, db, env); got != "" {
		t.Errorf("the doctor says %s", got)
	}
	wantEpoch(t, lead(t, s, db, "d", byRedis), "4")
}
