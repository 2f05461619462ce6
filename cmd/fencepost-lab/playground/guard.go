package playground

import (
	"mime"
	"net/http"

	"github.com/fencepost/fencepost/internal/web"
)

// guard refuses requests that do not come from the page itself, or from the visitor who opens it.
// Another site in the same browser can send requests to the address of the playground; it can do so
// under a name of its own that it lets point there.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		web.Protect(rw.Header())
		switch {
		case !web.KnownHost(r.Host):
			http.Error(rw, "open the playground by its address, or as localhost", http.StatusMisdirectedRequest)
		case !web.OwnOrigin(r):
			http.Error(rw, "requests of other sites are refused", http.StatusForbidden)
		case r.Method == http.MethodPost && !isJSON(r):
			http.Error(rw, "the request is not what the page sends", http.StatusUnsupportedMediaType)
		default:
			next.ServeHTTP(rw, r)
		}
	})
}

// isJSON reports whether a request says that it is JSON, which another site cannot do unless it is
// allowed to.
func isJSON(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == "application/json"
}
