package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/fencepost/fencepost/internal/web"
)

// Access says who may use the admin address. A request that changes something, which is one
// with another method than GET or HEAD, needs a credential. If none is configured, it must
// come from a loopback address. A browser sends the token as a password, which is good for reading only: the browser
// adds it to each request, whoever made it.
type Access struct {
	OpenReads bool   // other requests need nothing of that
	Token     string // "" if there is none
	// Certificates means that a client certificate, which was verified, is a credential.
	Certificates bool
}

// refusal returns the status with which a request is refused, and why; 0 if it is not.
func (a Access) refusal(r *http.Request) (status int, why string) {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	configured := a.Token != "" || a.Certificates
	switch {
	case reads && (a.OpenReads || a.knowsPassword(r)), a.knows(r):
		return 0, ""
	case configured:
		return http.StatusUnauthorized, "this request needs the token of the setting admin.token (Authorization: Bearer TOKEN; in a browser, as the password of any user, to read) " +
			"or a client certificate of admin.tls.client_ca_file, whichever is configured"
	case isLocal(r):
		return 0, ""
	default:
		return http.StatusForbidden, "this request is accepted from the host itself only: send it from there, or set admin.token or admin.tls.client_ca_file"
	}
}

// knows reports whether a request has a credential.
func (a Access) knows(r *http.Request) bool {
	if a.Certificates && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return true
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && a.isToken(given)
}

// knowsPassword reports whether a request has the token as a password.
func (a Access) knowsPassword(r *http.Request) bool {
	_, given, ok := r.BasicAuth()
	return ok && a.isToken(given)
}

func (a Access) isToken(given string) bool {
	// The sums have one length, so that the comparison does not reveal that of the token.
	got, want := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(a.Token))
	return a.Token != "" && subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// isLocal reports whether a request comes from a loopback address.
func isLocal(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && from.Addr().Unmap().IsLoopback()
}

// ownHost reports whether a request names a host that it may name. Behind a loopback address, a page of another site
// could read what is there, under a name of its own that it lets point to that address. A browser has no credential
// for such a name.
func (a Access) ownHost(r *http.Request) bool {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	tcp, _ := at.(*net.TCPAddr)
	return tcp == nil || !tcp.IP.IsLoopback() || web.KnownHost(r.Host) || a.knows(r) || a.knowsPassword(r)
}

// guarded lets only those requests through that access permits, and none that a browser sends on behalf of a foreign
// page.
func guarded(access func() Access, next http.Handler) http.Handler {
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		web.Protect(w.Header())
		a := access()
		status, why := a.refusal(r)
		switch {
		case !a.ownHost(r):
			status, why = http.StatusMisdirectedRequest, fmt.Sprintf("this address is not known as %q: use an IP address, localhost, or the name of the host", r.Host)
		case (r.Method == http.MethodGet || r.Method == http.MethodHead) && !web.OwnOrigin(r):
			status, why = http.StatusForbidden, "requests of other sites are refused"
		case status == 0:
			next.ServeHTTP(w, r)
			return
		case status == http.StatusUnauthorized:
			w.Header().Add("WWW-Authenticate", "Bearer")
			if a.Token != "" {
				w.Header().Add("WWW-Authenticate", `Basic realm="Fencepost: the token as the password of any user", charset="UTF-8"`)
			}
		}
		writeJSON(w, status, map[string]string{"error": why})
	}))
}
