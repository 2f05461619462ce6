package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
	"github.com/fencepost/fencepost/internal/table"
)

// shadowing runs a proxy on which the resource billing is in shadow, and users other than the test's may not campaign
// for the resource closed.
func shadowing(t *testing.T, s *pgtest.Server) *servicetest.Running {
	t.Helper()
	return servicetest.Start(t, s, func(c *config.Config) {
		c.Resources = map[string]config.Resource{"billing": {Enforce: "shadow"}, "closed": {Enforce: "shadow", Users: []string{"nobody"}}}
		c.Lease.Grace = config.Duration(200 * time.Millisecond)
	})
}

// judged runs the report of a resource of a proxy, which must have been watched for a moment.
func judged(t *testing.T, r *servicetest.Running, resource string, flags ...string) output {
	t.Helper()
	return runCommand(t, nil, append([]string{"shadow", "report", "--admin", r.AdminAddress().String(), "--resource", resource, "--least", "1ns"}, flags...)...)
}

// shadowReportOf is judged as JSON.
func shadowReportOf(t *testing.T, r *servicetest.Running, resource string) shadowReport {
	t.Helper()
	out := judged(t, r, resource, "--json")
	var list struct{ Resources []shadowReport }
	if err := json.Unmarshal([]byte(out.stdout), &list); err != nil || len(list.Resources) != 1 {
		t.Fatalf("%v, exit code %d: %s%s", err, out.code, out.stdout, out.stderr)
	}
	one := list.Resources[0]
	if one.Safe != (out.code == exitOK) || one.Safe != (len(one.NotYet) == 0) {
		t.Errorf("exit code %d of %+v", out.code, one)
	}
	return one
}

// TestTheShadowReportOfStaleWrites: those of a worker that is superseded, and of one that never led.
func TestTheShadowReportOfStaleWrites(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := shadowing(t, s)
	s.Exec(t, pgtest.App, db, "CREATE TABLE work (n int)")
	stale := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=a&fencepost.campaign=wait&fencepost.worker_timeout=300ms")
	leader := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=b&fencepost.campaign=wait")
	servicetest.Eventually(t, "a to be superseded", func() bool { return strings.Contains(rolesOf(t, r, db), "a:superseded") })
	follower := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=c")
	// A write that finds the lease vacant is not recorded.
	servicetest.Eventually(t, "c to know that the lease is not vacant", func() bool {
		return slices.ContainsFunc(r.Resources()[0].Candidacies, func(c status.Candidacy) bool { return c.Worker == "c" && !c.Status.Vacant })
	})
	for _, sql := range []string{"INSERT INTO work VALUES (1)", "INSERT INTO work VALUES (2)", "WITH w AS (SELECT 1) UPDATE work SET n = 3", "SELECT 1"} {
		if err := servicetest.Exec(t, stale, sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := servicetest.Exec(t, leader, "DELETE FROM work"); err != nil {
		t.Fatal(err)
	}
	if err := servicetest.Exec(t, follower, "CREATE TABLE late ()"); err != nil {
		t.Fatal(err)
	}
	want := []string{"ZF001 INSERT a app 2", "ZF001 UPDATE a app 1", "ZF002 CREATE c app 1"}
	var one shadowReport
	servicetest.Eventually(t, fmt.Sprintf("%q to be reported", want), func() bool {
		one = shadowReportOf(t, r, "billing")
		var got []string
		for _, w := range one.WouldRefuse {
			got = append(got, fmt.Sprintf("%s %s %s %s %d", w.SQLState, w.Statement, w.Worker, w.User, w.Count))
			if w.Last.Before(*one.Since) {
				t.Errorf("the last one of %s was at %s", w.Statement, w.Last)
			}
		}
		return slices.Equal(got, want)
	})
	out := judged(t, r, "billing")
	if one.Safe || one.Superseded != 1 || one.Connections != 3 || one.Since == nil || len(one.NotYet) != 2 || *one.WorkerTimeout != 30 || !strings.Contains(out.stderr, "1 of 1 resources are not safe") {
		t.Errorf("%+v\n%s", one, out.stderr)
	}
	for _, line := range []string{
		db + "/billing: not yet: 3 writes of workers that were superseded would have been refused (ZF001), of a (app): let a worker stop",
		db + "/billing: not yet: 1 writes of workers that did not lead would have been refused (ZF002), of c (app): let them write only while they lead",
		"proxy " + r.ID() + " has seen this",
	} {
		if !strings.Contains(out.stdout, "\n"+line) {
			t.Errorf("there is no line %q in\n%s", line, out.stdout)
		}
	}
	if strings.Contains(out.stdout, "no worker was superseded") {
		t.Errorf("a was superseded:\n%s", out.stdout)
	}
}

// TestTheShadowReportOfACleanApplication: it is safe to switch once it was watched for long enough, and after the
// switch there is nothing to report.
func TestTheShadowReportOfACleanApplication(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := shadowing(t, s)
	ask := func(flags ...string) output {
		return runCommand(t, nil, append([]string{"shadow", "report", "--admin", r.AdminAddress().String()}, flags...)...)
	}
	if out := ask(); out.code != exitFailure || !strings.Contains(out.stderr, "no such resource is in shadow") {
		t.Errorf("before any connection: exit code %d, %s", out.code, out.stderr)
	}
	leader := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=a&fencepost.campaign=wait")
	reader := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=b&fencepost.campaign=off&fencepost.worker_timeout=300ms")
	for _, sql := range []string{"CREATE TABLE work (n int)", "BEGIN", "INSERT INTO work VALUES (1)", "COMMIT"} {
		if err := servicetest.Exec(t, leader, sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := servicetest.Exec(t, reader, "SELECT * FROM work"); err != nil {
		t.Fatal(err)
	}
	one, out := shadowReportOf(t, r, "billing"), judged(t, r, "billing")
	if !one.Safe || one.Connections != 2 || len(one.WouldRefuse) != 0 || one.WorkerTimeout == nil || *one.WorkerTimeout != 30 || out.code != exitOK {
		t.Errorf("%+v: %s", one, out.stderr)
	}
	for _, want := range []string{"safe to switch: set resources.billing.enforce to on, and reload", "no worker was superseded while it was connected here"} {
		if !strings.Contains(out.stdout, db+"/billing: "+want) {
			t.Errorf("the report does not say %q:\n%s", want, out.stdout)
		}
	}
	if out := ask(); out.code != exitFailure || !strings.Contains(out.stdout, "watch for at least 24h0m0s") {
		t.Errorf("after a moment: exit code %d\n%s", out.code, out.stdout)
	}
	for flag, code := range map[string]int{"--resource=none": exitFailure, "--database=none": exitFailure, "--database=" + db: exitOK} {
		if out := ask("--least", "1ns", flag); out.code != code || (code != exitOK) != strings.Contains(out.stderr, "no such resource is in shadow") {
			t.Errorf("%s: exit code %d, %s", flag, out.code, out.stderr)
		}
	}
	for _, wrong := range [][]string{{"shadow"}, {"shadow", "report", "--least", "soon"}, {"shadow", "report", "billing"}} {
		if out := runCommand(t, nil, wrong...); out.code != exitUsage {
			t.Errorf("%v: exit code %d, %s", wrong, out.code, out.stderr)
		}
	}
	if out := runCommand(t, nil, "shadow", "report", "--admin", "127.0.0.1:1"); out.code != exitFailure {
		t.Errorf("of no proxy: exit code %d", out.code)
	}
	cfg := r.Config()
	cfg.Resources = map[string]config.Resource{"billing": {}}
	r.SetConfig(cfg)
	if out := runCommand(t, nil, "reload", "--admin", r.AdminAddress().String()); out.code != exitOK {
		t.Fatalf("reload: %s%s", out.stdout, out.stderr)
	}
	if out := ask("--resource", "billing", "--least", "1ns"); out.code != exitFailure || out.stdout != "" {
		t.Errorf("after the switch: exit code %d\n%s", out.code, out.stdout)
	}
}

// TestTheShadowReportOfALongSilence: the worker continued, so its timeout is too short, until the workers have a longer
// one. What was seen outlasts the worker.
func TestTheShadowReportOfALongSilence(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := shadowing(t, s)
	silent := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=a&fencepost.campaign=wait&fencepost.worker_timeout=300ms")
	servicetest.Eventually(t, "a to be taken for dead", func() bool {
		workers := r.View(t, db, "billing").Workers
		return len(workers) == 1 && workers[0].Unresponsive
	})
	if one := shadowReportOf(t, r, "billing"); !one.Safe || one.LongestSilence >= 0.3 {
		t.Errorf("a worker that may be dead was silent for %gs: %q", one.LongestSilence, one.NotYet)
	}
	if err := servicetest.Exec(t, silent, "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	servicetest.Eventually(t, "the silence to be reported", func() bool { return !shadowReportOf(t, r, "billing").Safe })
	one, out := shadowReportOf(t, r, "billing"), judged(t, r, "billing")
	if one.LongestSilence < 0.3 || one.WorkerTimeout == nil || one.FittingTimeout < 2*one.LongestSilence || one.FittingTimeout > 2*one.LongestSilence+0.1 ||
		!strings.Contains(out.stdout, "set resources.billing.worker_timeout to at least "+table.Seconds(one.FittingTimeout).String()) {
		t.Errorf("%+v\n%s", one, out.stdout)
	}
	patient := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=b&fencepost.worker_timeout=1h")
	if err := silent.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	servicetest.Eventually(t, "the longer timeout to count", func() bool {
		one = shadowReportOf(t, r, "billing")
		return one.Safe && one.LongestSilence >= 0.3 && one.WorkerTimeout != nil && *one.WorkerTimeout == 3600
	})
	if err := patient.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	servicetest.Eventually(t, "the configured timeout to count", func() bool {
		one = shadowReportOf(t, r, "billing")
		return one.LongestSilence >= 0.3 && one.WorkerTimeout != nil && *one.WorkerTimeout == 30
	})
}

// TestTheShadowReportOfRefusedConnections of a user who may not campaign.
func TestTheShadowReportOfRefusedConnections(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := shadowing(t, s)
	r.Connect(t, db, "fencepost.resource=closed&fencepost.worker=a")
	servicetest.Eventually(t, "the connection to be reported", func() bool {
		one, out := shadowReportOf(t, r, "closed"), judged(t, r, "closed")
		return len(one.WouldRefuse) == 1 && one.WouldRefuse[0].Statement == fencing.VerbConnection && one.WouldRefuse[0].SQLState == "28000" &&
			strings.Contains(out.stdout, "not yet: 1 connections would have been refused (28000), of a (app): the audit log has the reason")
	})
}

// TestNamesWriteNoLinesOfTheShadowReport: whoever connects chooses the name of a worker.
func TestNamesWriteNoLinesOfTheShadowReport(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Now()
	would := []admin.WouldRefuse{{SQLState: "ZF002", Worker: "w\nshop/r: safe to switch\x1b[2K", User: "u", Count: 3, Last: now}, {SQLState: "ZF002", Count: 2, Last: now}}
	r := reportOf(admin.ShadowView{Database: "shop", Resource: "r", Since: &now, WouldRefuse: would}, time.Nanosecond, now.Add(time.Second))
	if err := printShadow(&out, "p", []shadowReport{r}); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Count(text, "\n") != 9 || strings.Contains(text, "\x1b") || !strings.Contains(text, "5 writes of workers that did not lead") ||
		!strings.Contains(text, `(u), others`) || !strings.Contains(text, "(not known)  5 ") {
		t.Errorf("%d lines:\n%s", strings.Count(text, "\n"), text)
	}
	if r := reportOf(admin.ShadowView{Resource: "r"}, time.Nanosecond, now); r.Safe || !strings.Contains(r.NotYet[0], "no connection in shadow has begun") {
		t.Errorf("of a resource without connections: %+v", r)
	}
}
