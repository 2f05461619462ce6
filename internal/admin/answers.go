package admin

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

const (
	// answerTimeout bounds a request with the sending of its answer. A stream bounds each of its events instead.
	answerTimeout = time.Minute
	// largeAnswer is the size from which on an answer is large, in bytes: it may have to be kept until the client reads
	// it.
	largeAnswer = 64 << 10
	// mostLarge is how many large answers are sent at once.
	mostLarge = 16
)

// large has an element for each large answer that is being sent.
var large = make(chan struct{}, mostLarge)

// bounded ends the sending of an answer to a client that does not read it. A profile lasts for as long as it was asked
// for.
func bounded(timeout time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var end time.Time
		if !strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			end = time.Now().Add(timeout)
		}
		_ = http.NewResponseController(w).SetWriteDeadline(end) // the next request of the connection sets it again
		next.ServeHTTP(w, r)
	})
}

// writeJSON answers with a body, or with an error if too many large ones are being sent: whoever may read could
// otherwise ask for them on many connections, read none, and make the proxy keep them.
func writeJSON(w http.ResponseWriter, status int, body any) {
	text, err := json.MarshalIndent(body, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if len(text) > largeAnswer {
		select {
		case large <- struct{}{}:
			defer func() { <-large }()
		default:
			writeJSON(w, http.StatusServiceUnavailable, map[string]string{"error": "too many large answers are being sent to clients that do not read them: try again"})
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // the client may be gone
}
