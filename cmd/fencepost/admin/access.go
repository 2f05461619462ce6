package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/netip"
	"strings"
)

// Access says who may use the admin address. A request that changes something, which is one
// with another method than GET or HEAD, needs a credential. If none is configured, it must
// come from a loopback address.
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
	case reads && a.OpenReads, a.knows(r):
		return 0, ""
	case configured:
		return http.StatusUnauthorized, "this request needs the token of the setting admin.token (Authorization: Bearer TOKEN) " +
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
	// The sums have one length, so that the comparison does not tell that of the token.
	got, want := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(a.Token))
	return ok && a.Token != "" && subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// isLocal reports whether a request comes from a loopback address.
func isLocal(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && from.Addr().Unmap().IsLoopback()
}

// guarded lets only those requests through that access permits, and none that changes
// something and that a browser sends on behalf of a foreign page.
func guarded(access func() Access, next http.Handler) http.Handler {
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, why := access().refusal(r)
		if status == 0 {
			next.ServeHTTP(w, r)
			return
		}
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		writeJSON(w, status, map[string]string{"error": why})
	}))
}
