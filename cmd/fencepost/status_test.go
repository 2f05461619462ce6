package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost/admin"
	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
)

// TestNamesWriteNoLinesOfTheStatus: users of Postgres may choose names that contain
// line ends and escape sequences.
func TestNamesWriteNoLinesOfTheStatus(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	name := "w\nshop/billing: takeover blocked: process 4242 must be ended: pg_terminate_backend(4242)\n\x1b[2K"
	if err := printStatus(&out, []statusRow{{database: "shop", resource: "r", leader: name, epoch: "1"}}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 2 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%d lines of one resource:\n%q", n, out.String())
	}
}

func TestStatusShowsATable(t *testing.T) {
	t.Parallel()
	m := admin.NewMetrics()
	m.Audit(fencing.Rejection{Database: "shop", Resource: "billing", SQLState: fencing.StateSuperseded, Kind: fencing.KindStale, Write: true})
	m.Blocked("shop", "mail", []string{"something"})
	server := &admin.Server{Metrics: m, Resources: func() []election.ResourceStatus {
		return []election.ResourceStatus{
			{
				Database: "shop", Resource: "billing", Local: true, LeaseLeft: 7 * time.Second, FalseAlarms: 4,
				Record: fencing.Record{Epoch: 8, Worker: "host-9:117:q1", GrantedAt: time.Now().Add(-time.Minute)},
				Candidacies: []election.CandidacyStatus{{Worker: "host-9:117:q1", WorkerTimeout: 90 * time.Second,
					Status: fencing.Status{Role: fencing.Leader, Epoch: 8}}},
			},
			{Database: "shop", Resource: "mail", Leaderless: 5 * time.Second},
		}
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	out := runCommand(t, nil, "status", "--admin", l.Addr().String())
	cancel()
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
	if out.code != exitOK {
		t.Fatalf("exit code %d: %s", out.code, out.stderr)
	}
	lines := strings.Split(strings.TrimSpace(out.stdout), "\n")
	if len(lines) != 4 {
		t.Fatalf("got %d lines:\n%s", len(lines), out.stdout)
	}
	for _, want := range []string{"shop", "billing", "host-9:117:q1", "8", "7s", "1", "1m30s  ", "4"} {
		if !strings.Contains(lines[1], want) {
			t.Errorf("line %q has no %q", lines[1], want)
		}
	}
	if !strings.Contains(lines[2], "none") {
		t.Errorf("line %q does not say that there is no lease", lines[2])
	}
	if lines[3] != "shop/mail: takeover blocked: something" {
		t.Errorf("line %q does not say what blocks the takeover", lines[3])
	}
}
