package playground

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
	"github.com/fencepost/fencepost/internal/web"
)

//go:embed page
var page embed.FS

const (
	// sendEvery is the shortest time between two states that are sent to a browser.
	sendEvery = 100 * time.Millisecond
	// aliveEvery is how often something is sent although nothing has changed.
	aliveEvery = 15 * time.Second
	// mostBytes is how long a request may be.
	mostBytes = 4 << 10
)

// serve serves the page until ctx ends.
func serve(ctx context.Context, ln net.Listener, lab *Lab) error {
	server := http.Server{
		Handler:           newHandler(lab),
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the page: %w", err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err := server.Shutdown(ending)
	<-served // always http.ErrServerClosed
	if err != nil {
		return fmt.Errorf("end the web server: %w", errors.Join(err, server.Close()))
	}
	return nil
}

// answers answers the requests of the page.
type answers struct {
	lab     *Lab
	streams web.Streams
}

// newHandler returns the page, behind the guard that refuses other sites.
func newHandler(lab *Lab) http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // it is embedded
	}
	w := &answers{lab: lab, streams: web.NewStreams()}
	mux := http.NewServeMux()
	mux.Handle("GET /", web.Files(files))
	mux.HandleFunc("GET /state", w.state)
	mux.HandleFunc("GET /events", w.events)
	mux.HandleFunc("POST /enter", w.enter)
	mux.HandleFunc("POST /do", w.do)
	return guard(mux)
}

// state answers with the state once.
func (w *answers) state(rw http.ResponseWriter, _ *http.Request) {
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(w.lab.State()) // the browser may have gone
}

// events sends the state at each change, as server-sent events.
func (w *answers) events(rw http.ResponseWriter, r *http.Request) {
	var news <-chan struct{} // of what was not sent yet; nil before the first state
	w.streams.Send(rw, r, func() []byte {
		if news != nil {
			scratch.Sleep(r.Context(), sendEvery)
			select {
			case <-news:
			case <-time.After(aliveEvery):
			case <-r.Context().Done():
				return nil
			}
		}
		news = w.lab.News()
		text, err := json.Marshal(w.lab.State())
		if err != nil {
			panic(err) // the state consists of texts and numbers
		}
		return text
	})
}

// enter begins a scene.
func (w *answers) enter(rw http.ResponseWriter, r *http.Request) {
	var asked struct {
		Scene     string `json:"scene"`
		Algorithm string `json:"algorithm"`
	}
	if decode(rw, r, &asked) {
		// The scene begins also if the browser leaves meanwhile.
		answer(rw, w.lab.Enter(context.WithoutCancel(r.Context()), asked.Scene, asked.Algorithm))
	}
}

// do does a deed.
func (w *answers) do(rw http.ResponseWriter, r *http.Request) {
	var asked struct {
		Do  string `json:"do"`
		Who string `json:"who"`
	}
	if decode(rw, r, &asked) {
		answer(rw, w.lab.Do(asked.Do, asked.Who))
	}
}

// decode reads what a browser asks for. If it cannot, it answers, and returns false.
func decode(rw http.ResponseWriter, r *http.Request, asked any) bool {
	in := json.NewDecoder(http.MaxBytesReader(rw, r.Body, mostBytes))
	in.DisallowUnknownFields()
	if err := in.Decode(asked); err != nil {
		http.Error(rw, "the request is not what the page sends", http.StatusBadRequest)
		return false
	}
	return true
}

func answer(rw http.ResponseWriter, err error) {
	var refused notNow
	switch {
	case err == nil:
		rw.WriteHeader(http.StatusNoContent)
	case errors.Is(err, errUnknown):
		http.Error(rw, err.Error(), http.StatusNotFound)
	case errors.As(err, &refused):
		http.Error(rw, err.Error(), http.StatusConflict)
	default:
		http.Error(rw, err.Error(), http.StatusInternalServerError)
	}
}
