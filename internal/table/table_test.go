package table

import (
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/admin"
)

// TestOnlyALeaseElsewhereMayHaveBeenRenewed: only another proxy's value may be out of date.
func TestOnlyALeaseElsewhereMayHaveBeenRenewed(t *testing.T) {
	t.Parallel()
	left, until := 7.0, time.Now().Add(time.Hour)
	for what, tt := range map[string]struct {
		view Resource
		want string
	}{
		"here":            {Resource{ResourceView: admin.ResourceView{LeaseLeft: &left, ConfirmedUntil: &until}}, "7s"},
		"elsewhere":       {Resource{ResourceView: admin.ResourceView{ConfirmedUntil: &until}}, "≥59m59"},
		"in the database": {Resource{ResourceView: admin.ResourceView{ConfirmedUntil: &until}, OfDatabase: true}, "59m59"},
		"nowhere":         {Resource{ResourceView: admin.ResourceView{Leaderless: 1}}, "none"},
	} {
		if got := tt.view.Cells()[7]; !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %s is left, want %s", what, got, tt.want)
		}
	}
}

// TestFaultsShowAFailedReload, as FaultLines does.
func TestFaultsShowAFailedReload(t *testing.T) {
	t.Parallel()
	at := time.Now()
	for _, c := range []struct {
		of   admin.Readiness
		rows int
	}{{admin.Readiness{}, 0}, {admin.Readiness{ReloadFailed: &at}, 1}} {
		rows := Faults(c.of)
		if len(rows) != c.rows || c.rows == 1 && (rows[0][0] != "reload failed" || rows[0][2] == "" || rows[0][4] == "") {
			t.Errorf("%q", rows)
		}
	}
}
