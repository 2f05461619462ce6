package admin

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// reloadable returns a server that counts its reloads.
func reloadable(reloads *int) *Server {
	a := testServer(&Readiness{Ready: true})
	a.Reload = func() (any, bool) { *reloads++; return map[string]int{"reloads": *reloads}, *reloads != 2 }
	return a
}

// TestOnlyTheHostItselfReloads: without credentials, and no foreign page in its browser.
func TestOnlyTheHostItselfReloads(t *testing.T) {
	t.Parallel()
	var reloads int
	h := reloadable(&reloads).handler()
	for _, c := range []struct {
		method, from, site string
		code, reloads      int
	}{
		{http.MethodPost, "127.0.0.1:4000", "", http.StatusOK, 1},
		{http.MethodPost, "[::1]:4000", "", http.StatusUnprocessableEntity, 2},
		{http.MethodPost, "[::ffff:127.0.0.1]:4000", "", http.StatusOK, 3},
		{http.MethodPost, "10.0.0.7:4000", "", http.StatusForbidden, 3},
		{http.MethodPost, "127.0.0.1:4000", "cross-site", http.StatusForbidden, 3},
		{http.MethodGet, "127.0.0.1:4000", "", http.StatusMethodNotAllowed, 3},
	} {
		r := httptest.NewRequest(c.method, "/v1/reload", nil)
		r.RemoteAddr = c.from
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.code || reloads != c.reloads {
			t.Errorf("%s from %s %s: %d after %d reloads, want %d after %d", c.method, c.from, c.site, w.Code, reloads, c.code, c.reloads)
		}
	}
}
