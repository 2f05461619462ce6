package playground

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	const host = "127.0.0.1:6480"
	for name, c := range map[string]struct {
		method, path, host string
		headers            string // name: value, separated by |
		want               int
	}{
		"the page":                        {"GET", "/", host, "", 200},
		"by the name localhost":           {"GET", "/", "localhost:6480", "", 200},
		"by an IPv6 address":              {"GET", "/", "[::1]:6480", "", 200},
		"by an IPv6 address without port": {"GET", "/", "[::1]", "", 200},
		"by a name of another site":       {"GET", "/", "rebound.example:6480", "", 421},
		"by a name like localhost":        {"GET", "/", "localhost.example", "", 421},
		"without a name":                  {"GET", "/", "", "", 421},
		"the page's own request":          {"POST", "/do", host, "Origin: http://127.0.0.1:6480|Sec-Fetch-Site: same-origin|Content-Type: application/json", 200},
		"a command line":                  {"POST", "/do", host, "Content-Type: application/json; charset=utf-8", 200},
		"a link on another site":          {"GET", "/", host, "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: navigate|Sec-Fetch-Dest: document", 200},
		"a frame on another site":         {"GET", "/", host, "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: navigate|Sec-Fetch-Dest: iframe", 403},
		"a link to the state":             {"GET", "/state", host, "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: navigate|Sec-Fetch-Dest: document", 403},
		"a script of another site":        {"GET", "/app.js", host, "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: no-cors|Sec-Fetch-Dest: script", 403},
		"another port":                    {"GET", "/events", host, "Origin: http://127.0.0.1:8080|Sec-Fetch-Site: same-site", 403},
		"another port, an old browser":    {"GET", "/events", host, "Origin: http://127.0.0.1:8080", 403},
		"under TLS":                       {"GET", "/events", host, "Origin: https://127.0.0.1:6480", 403},
		"a page without an origin":        {"POST", "/do", host, "Origin: null|Content-Type: application/json", 403},
		"a form":                          {"POST", "/do", host, "Content-Type: application/x-www-form-urlencoded", 415},
		"text that is said to be plain":   {"POST", "/do", host, "Content-Type: text/plain", 415},
		"without a type":                  {"POST", "/do", host, "", 415},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(c.method, c.path, http.NoBody)
			r.Host = c.host
			for header := range strings.SplitSeq(c.headers, "|") {
				if name, value, ok := strings.Cut(header, ": "); ok {
					r.Header.Set(name, value)
				}
			}
			rec := httptest.NewRecorder()
			guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(rec, r)
			if rec.Code != c.want {
				t.Errorf("code %d, want %d", rec.Code, c.want)
			}
			if got := rec.Header().Get("Content-Security-Policy"); !strings.Contains(got, "default-src 'none'") || strings.Contains(got, "unsafe") {
				t.Errorf("the policy is %q", got)
			}
		})
	}
}
