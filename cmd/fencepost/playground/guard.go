package playground

import (
	"mime"
	"net"
	"net/http"
	"strings"
)

// policy is the page's Content-Security-Policy: it loads only what the program serves, and runs no
// script that is written into a page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guard refuses requests that do not come from the page itself, or from the visitor who opens it.
// Another site in the same browser can send requests to the address of the playground; it can do so
// under a name of its own that it lets point there.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		h := rw.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case !knownHost(r.Host):
			http.Error(rw, "open the playground by its address, or as localhost", http.StatusMisdirectedRequest)
		case !ownOrigin(r):
			http.Error(rw, "requests of other sites are refused", http.StatusForbidden)
		case r.Method == http.MethodPost && !isJSON(r):
			http.Error(rw, "the request is not what the page sends", http.StatusUnsupportedMediaType)
		default:
			next.ServeHTTP(rw, r)
		}
	})
}

// knownHost reports whether the visitor has opened an address, or localhost. Any other name could be
// one that another site lets point here.
func knownHost(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]") // there is no port
	}
	return host == "localhost" || net.ParseIP(host) != nil
}

// ownOrigin reports whether a request comes from the page. A browser may also be led to the page, by a
// link or by its user.
func ownOrigin(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return true
	default:
		return r.Method == http.MethodGet && r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	}
}

// isJSON reports whether a request says that it is JSON, which another site cannot do unless it is
// allowed to.
func isJSON(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == "application/json"
}
