// Package web has what the pages of the playground and of operators have in common: how they are served, which
// requests of a browser are refused, the events that keep them current, and their look.
package web

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

//go:embed page
var shared embed.FS

// Files serves the files of a page, and those that all pages have.
func Files(own fs.FS) http.Handler {
	common, err := fs.Sub(shared, "page")
	if err != nil {
		panic(err) // it is embedded
	}
	return http.FileServerFS(both{own, common})
}

// both has the files of two file systems. A name that both have is that of the first.
type both struct{ first, second fs.FS }

// Open implements fs.FS.
func (b both) Open(name string) (fs.File, error) {
	f, err := b.first.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return b.second.Open(name)
	}
	return f, err
}

// policy is the Content-Security-Policy of the pages: they load only what the program serves, and run no script and
// use no style that is written into a page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Protect sets the headers that keep a browser from doing with a response what it is not for.
func Protect(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// KnownHost reports whether a request was sent to an address, to localhost, or to this host by its name. Any other
// name could be one that another site lets point to a loopback address.
func KnownHost(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]") // there is no port
	}
	own, err := os.Hostname()
	return strings.EqualFold(host, "localhost") || net.ParseIP(host) != nil || err == nil && own != "" && strings.EqualFold(host, own)
}

// OwnOrigin reports whether a request comes from the page, or from no page at all. A browser may also be led to the
// page, by a link or by its user.
func OwnOrigin(r *http.Request) bool {
	own := "http://" + r.Host
	if r.TLS != nil {
		own = "https://" + r.Host
	}
	if origin := r.Header.Get("Origin"); origin != "" && origin != own {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return true
	default:
		return r.Method == http.MethodGet && r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	}
}

const (
	// mostListeners is how many browsers may follow one page at once.
	mostListeners = 32
	// sendTimeout bounds the sending of one event: a browser that takes longer is left.
	sendTimeout = 10 * time.Second
)

// Streams are the server-sent events of one page. They are safe for concurrent use.
type Streams struct {
	listeners chan struct{} // one for each that follows
	timeout   time.Duration // of the sending of one event
}

// NewStreams returns streams that no one follows.
func NewStreams() Streams { return Streams{make(chan struct{}, mostListeners), sendTimeout} }

// Send sends what next returns until the browser has gone, or next returns nil. It never keeps more than one event for
// a browser, so next must return what is new since the last one that was sent.
func (s Streams) Send(rw http.ResponseWriter, r *http.Request, next func() []byte) {
	select {
	case s.listeners <- struct{}{}:
		defer func() { <-s.listeners }()
	default:
		http.Error(rw, "too many browsers follow this page: close one", http.StatusServiceUnavailable)
		return
	}
	rw.Header().Set("Content-Type", "text/event-stream")
	rw.Header().Set("X-Accel-Buffering", "no") // nginx in front would otherwise keep events until it has many
	control := http.NewResponseController(rw)
	for r.Context().Err() == nil {
		text := next()
		if text == nil {
			return
		}
		_ = control.SetWriteDeadline(time.Now().Add(s.timeout)) // if it cannot be set, the sending has no limit
		if _, err := fmt.Fprintf(rw, "data: %s\n\n", text); err != nil || control.Flush() != nil {
			return
		}
	}
}
