package admin

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/fencepost/fencepost/internal/web"
)

//go:embed page
var page embed.FS

// ErrUnknown means that this proxy knows no database of that name.
var ErrUnknown = errors.New("this proxy knows no such database")

const (
	// mostQueries is how many requests may read a database at once.
	mostQueries = 2
	// longestPeriod bounds how many seconds a request may count back.
	longestPeriod = 100 * 366 * 86400
	// queryTimeout bounds each of them, with the time until it may begin.
	queryTimeout = 5 * time.Second
)

// addPage adds the page for operators, and what it reads in addition to the other routes.
func (a *Server) addPage(mux *http.ServeMux) {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // it is embedded
	}
	a.live.init(a)
	mux.Handle("GET /{$}", web.Files(files))
	mux.Handle("GET /page/", http.StripPrefix("/page", web.Files(files)))
	streams := web.NewStreams()
	mux.HandleFunc("GET /v1/events", func(w http.ResponseWriter, r *http.Request) {
		streams.Send(w, r, a.live.follow(r.Context()))
	})
	queries := make(chan struct{}, mostQueries)
	mux.HandleFunc("GET /v1/resources/{database}/{resource}/history", func(w http.ResponseWriter, r *http.Request) {
		since, until, err := period(r, time.Now())
		if err != nil {
			writeJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
			return
		}
		database, resource := r.PathValue("database"), r.PathValue("resource")
		query(w, r, queries, a.History != nil, func(ctx context.Context) (any, error) {
			recorded, err := a.History(ctx, database, resource, since, until)
			return History{Database: database, Resource: resource, Since: since, Until: until, Recorded: recorded, Silences: a.Metrics.silencesOf(database, resource)}, err
		})
	})
	mux.HandleFunc("GET /v1/refusals", func(w http.ResponseWriter, r *http.Request) {
		query(w, r, queries, a.Refusals != nil, func(ctx context.Context) (any, error) { return a.Refusals(ctx) })
	})
	mux.HandleFunc("GET /v1/proxies", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, a.about()) })
}

// about returns what this proxy knows of itself and of others.
func (a *Server) about() About {
	about := About{Proxy: a.Proxy, Version: a.Process.Version, GoVersion: runtime.Version(), Started: started.UTC(), Traffic: map[string]Traffic{}, Others: []OtherProxy{}}
	if a.Connections != nil {
		about.Clients = len(a.Connections())
	}
	if a.Process.Certificates != nil {
		about.Certificates = a.Process.Certificates()
	}
	if a.Process.LastReload != nil {
		at, ok := a.Process.LastReload()
		about.Reloaded, about.ReloadFailed = at.UTC(), !ok
	}
	if a.Process.Traffic != nil {
		for database, t := range a.Process.Traffic() {
			about.Traffic[database] = Traffic(t)
		}
	}
	if a.Proxies != nil {
		about.Others = a.Proxies()
	}
	return about
}

// started is when the process began, within some milliseconds.
var started = time.Now()

// History is what happened to a resource. Its JSON is a contract.
type History struct {
	Database string    `json:"database"`
	Resource string    `json:"resource"`
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until"`
	Recorded any       `json:"recorded"` // by the database
	// Silences are the leases that this proxy has released since it started, because their workers were silent.
	Silences []Silence `json:"silences"`
}

// Silence is the end of a lease because its worker showed no activity.
type Silence struct {
	At     time.Time `json:"at"` // when the lease was released
	Worker string    `json:"worker"`
	Epoch  int64     `json:"epoch"`
}

// About is what this proxy knows of itself and of others. Its JSON is a contract.
type About struct {
	Proxy     string    `json:"proxy"`
	Version   string    `json:"version"`
	GoVersion string    `json:"go_version"`
	Started   time.Time `json:"started"`
	Clients   int       `json:"clients"`
	// Certificates says when those that are in use expire, by the setting that they are for.
	Certificates map[string]time.Time `json:"certificates"`
	// Traffic is that of the clients, by database.
	Traffic map[string]Traffic `json:"traffic"`
	// Reloaded is when the configuration was last read, and ReloadFailed that it could not be used.
	Reloaded     time.Time `json:"reloaded"`
	ReloadFailed bool      `json:"reload_failed,omitempty"`
	// Others are the proxies, this one among them, that have said in a database that workers campaign through them.
	Others []OtherProxy `json:"proxies"`
}

// Traffic is what the clients of one database have sent and got since the proxy started.
type Traffic struct {
	Received     uint64 `json:"received_bytes"`
	Sent         uint64 `json:"sent_bytes"`
	Transactions uint64 `json:"transactions"`
}

// OtherProxy is what a database knows of a proxy.
type OtherProxy struct {
	Name     string    `json:"name"`
	Database string    `json:"database"`
	Seen     time.Time `json:"seen"` // when it last said that it is alive, by the server's clock
	Age      float64   `json:"age_seconds"`
	Leading  int       `json:"leading"` // how many workers lead through it
	Workers  int       `json:"workers"` // how many campaign
}

// period returns the time that a request asks for: the last day if it says nothing.
func period(r *http.Request, now time.Time) (since, until time.Time, err error) {
	until, err = instant(r, "until", now, now)
	if err != nil {
		return since, until, err
	}
	since, err = instant(r, "since", until, until.Add(-24*time.Hour))
	if err == nil && !since.Before(until) {
		err = errors.New("since must be before until")
	}
	return since, until, err
}

// instant reads a parameter: a time as RFC 3339 has it, in seconds since 1970, or, if they are negative, before to.
func instant(r *http.Request, name string, to, otherwise time.Time) (time.Time, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if seconds, notSeconds := strconv.ParseInt(text, 10, 64); notSeconds == nil {
		at, err = time.Unix(seconds, 0), nil
		if seconds < 0 {
			at = to.Add(time.Duration(max(seconds, -longestPeriod)) * time.Second)
		}
	}
	if err != nil || at.Year() < 1970 || at.Year() > 9999 {
		return at, fmt.Errorf("%s must be a time like 2026-03-02T11:00:00Z, or seconds since 1970, or negative seconds to count back", name)
	}
	return at.UTC(), nil
}

// query answers with what do reads from databases, when it is its turn.
func query(w http.ResponseWriter, r *http.Request, turns chan struct{}, possible bool, do func(context.Context) (any, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	var body any
	err := errors.New("this proxy cannot read its databases")
	if possible {
		select {
		case turns <- struct{}{}:
			body, err = do(ctx)
			<-turns
		case <-ctx.Done():
			err = errors.New("others read the databases now: try again")
		}
	}
	switch {
	case err == nil:
		writeJSON(w, http.StatusOK, body)
	case errors.Is(err, ErrUnknown):
		writeJSON(w, http.StatusNotFound, map[string]string{"error": err.Error()})
	default:
		writeJSON(w, http.StatusServiceUnavailable, map[string]string{"error": err.Error()})
	}
}
