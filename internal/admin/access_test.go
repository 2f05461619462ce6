package admin

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestAccess is the table of who may read and who may change something.
func TestAccess(t *testing.T) {
	t.Parallel()
	const local, other = "127.0.0.1:4000", "10.0.0.7:4000"
	verified := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{}}}
	open, closed := Access{OpenReads: true}, Access{}
	token, certificate := Access{OpenReads: true, Token: "secret"}, Access{OpenReads: true, Certificates: true}
	for name, c := range map[string]struct {
		access              Access
		from, authorization string
		tls                 *tls.ConnectionState
		read, change        int
	}{
		"the host itself":                  {open, local, "", nil, 200, 200},
		"the host itself, by IPv6":         {open, "[::1]:4000", "", nil, 200, 200},
		"the host itself, mapped":          {open, "[::ffff:127.0.0.1]:4000", "", nil, 200, 200},
		"another host":                     {open, other, "", nil, 200, 403},
		"an address that is none":          {open, "@", "", nil, 200, 403},
		"closed, the host itself":          {closed, local, "", nil, 200, 200},
		"closed, another host":             {closed, other, "", nil, 403, 403},
		"a token that nobody configured":   {open, other, "Bearer ", nil, 200, 403},
		"no token on the host itself":      {token, local, "", nil, 200, 401},
		"a wrong token":                    {token, local, "Bearer secre", nil, 200, 401},
		"a token in another scheme":        {token, local, "Basic secret", nil, 200, 401},
		"the token":                        {token, other, "Bearer secret", nil, 200, 200},
		"closed, the token":                {Access{Token: "secret"}, other, "Bearer secret", nil, 200, 200},
		"closed, a wrong token":            {Access{Token: "secret"}, other, "Bearer other", nil, 401, 401},
		"no certificate":                   {certificate, local, "", &tls.ConnectionState{}, 200, 401},
		"a certificate":                    {certificate, other, "", verified, 200, 200},
		"a certificate where none counts":  {token, other, "", verified, 200, 401},
		"an empty token, with certificate": {certificate, other, "Bearer ", nil, 200, 401},
	} {
		for method, want := range map[string]int{http.MethodGet: c.read, http.MethodHead: c.read, http.MethodPost: c.change, http.MethodDelete: c.change} {
			r := httptest.NewRequest(method, "/v1/something", nil)
			r.RemoteAddr, r.TLS = c.from, c.tls
			if c.authorization != "" {
				r.Header.Set("Authorization", c.authorization)
			}
			got, why := c.access.refusal(r)
			if got == 0 {
				got = 200
			}
			if got != want || (why == "") != (got == 200) {
				t.Errorf("%s: %s: %d %q, want %d", name, method, got, why, want)
			}
		}
	}
}

// TestReloadIsGuarded: the access holds for the served paths, and a page of another site in
// the operator's browser cannot send requests that change something.
func TestReloadIsGuarded(t *testing.T) {
	t.Parallel()
	reloads := 0
	a := testServer(&Readiness{Ready: true})
	a.Reload = func() (any, bool) { reloads++; return map[string]int{"reloads": reloads}, reloads != 2 }
	h := a.handler()
	for _, c := range []struct {
		method, from, site string
		code, reloads      int
	}{
		{http.MethodPost, "127.0.0.1:4000", "", http.StatusOK, 1},
		{http.MethodPost, "127.0.0.1:4000", "", http.StatusUnprocessableEntity, 2},
		{http.MethodPost, "10.0.0.7:4000", "", http.StatusForbidden, 2},
		{http.MethodPost, "127.0.0.1:4000", "cross-site", http.StatusForbidden, 2},
		{http.MethodGet, "127.0.0.1:4000", "", http.StatusMethodNotAllowed, 2},
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

// TestQuitNeedsACredential: what suffices to read, or to reload on the host itself, does not end the proxy.
func TestQuitNeedsACredential(t *testing.T) {
	t.Parallel()
	const local, other = "127.0.0.1:4000", "10.0.0.7:4000"
	for _, c := range []struct {
		method, from, token, given string
		code, quits                int
	}{
		{http.MethodPost, local, "", "", http.StatusForbidden, 0},
		{http.MethodPost, local, "", "Bearer ", http.StatusForbidden, 0},
		{http.MethodPost, other, "", "", http.StatusForbidden, 0},
		{http.MethodPost, local, "secret", "", http.StatusUnauthorized, 0},
		{http.MethodPost, local, "secret", "Bearer other", http.StatusUnauthorized, 0},
		{http.MethodGet, local, "secret", "Bearer secret", http.StatusMethodNotAllowed, 0},
		{http.MethodPost, other, "secret", "Bearer secret", http.StatusAccepted, 1},
	} {
		quits := 0
		a := testServer(&Readiness{Ready: true})
		a.Access, a.Quit = func() Access { return Access{OpenReads: true, Token: c.token} }, func() { quits++ }
		r := httptest.NewRequest(c.method, "/v1/quit", nil)
		r.RemoteAddr = c.from
		r.Header.Set("Authorization", c.given)
		w := httptest.NewRecorder()
		a.handler().ServeHTTP(w, r)
		if w.Code != c.code || quits != c.quits {
			t.Errorf("%s from %s with %q, where the token is %q: %d, and quits %d times; want %d and %d", c.method, c.from, c.given, c.token, w.Code, quits, c.code, c.quits)
		}
	}
}
