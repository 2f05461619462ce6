package service_test

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/audit/evidence"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// TestThePageReadsWhatDatabasesRecord: of databases that the proxy knows, and no others.
func TestThePageReadsWhatDatabasesRecord(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := servicetest.Start(t, s, func(c *config.Config) { c.Control.ProbeDatabase = db })
	const resource = "a/b ü'%"
	r.Connect(t, db, "fencepost.resource="+strings.ReplaceAll(url.QueryEscape(resource), "+", "%20")+"&fencepost.worker=w&fencepost.worker_timeout=0")
	s.Exec(t, pgtest.Superuser, db, "INSERT INTO fencepost.rejections SELECT now(), current_database(), 'billing', 'late', 'stale', true, 'ZF001', 'f', 3, now(), now(), 1, 2, 'w', 'app', '', '', 'UPDATE t'")
	path := "/v1/resources/" + db + "/" + url.PathEscape(resource) + "/history"
	servicetest.Eventually(t, "the term to be in the history", func() bool {
		var h struct {
			Resource string
			Recorded evidence.Period
		}
		code, body := r.Ask(t, path)
		return code == 200 && json.Unmarshal([]byte(body), &h) == nil && h.Resource == resource && len(h.Recorded.Terms) == 1 && h.Recorded.Terms[0].Worker == "w"
	})
	if code, body := r.Ask(t, "/v1/resources/"+pgtest.Template+"/billing/history"); code != 404 || !strings.Contains(body, admin.ErrUnknown.Error()) {
		t.Errorf("a database that nobody uses: %d %s", code, body)
	}
	var list service.RefusalList
	if code, body := r.Ask(t, "/v1/refusals"); code != 200 || json.Unmarshal([]byte(body), &list) != nil {
		t.Errorf("the refusals: %d %s", code, body)
	}
	found := false
	for _, d := range list.Databases {
		for _, one := range d.Refusals {
			found = found || d.Database == db && one.Worker == "late" && one.Count == 3 && one.Statement == "UPDATE t"
		}
	}
	if !found {
		t.Errorf("the refusal is not in %+v", list)
	}
	var about admin.About
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the proxies: %+v", about)
		}
	})
	servicetest.Eventually(t, "the proxy to be listed", func() bool {
		code, body := r.Ask(t, "/v1/proxies")
		if code != 200 || json.Unmarshal([]byte(body), &about) != nil || about.Proxy != r.ID() || about.Clients != 1 || about.Reloaded.IsZero() {
			t.Fatalf("%d %s", code, body)
		}
		for _, p := range about.Others {
			if p.Name == r.ID() && p.Database == db && p.Leading == 1 && p.Workers == 1 && p.Age < 60 {
				return true
			}
		}
		return false
	})
}
