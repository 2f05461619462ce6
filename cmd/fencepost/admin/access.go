package admin

import (
	"net/http"
	"net/netip"
)

// guarded lets only those requests through to a path that changes something that may do so:
// those from this host, and none that a browser sends on behalf of a foreign page.
func guarded(next http.Handler) http.Handler {
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocal(r) {
			writeJSON(w, http.StatusForbidden, map[string]string{
				"error": "this path changes something: it accepts requests from the host itself only",
			})
			return
		}
		next.ServeHTTP(w, r)
	}))
}

// isLocal reports whether a request comes from a loopback address.
func isLocal(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && from.Addr().Unmap().IsLoopback()
}
