package web

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestThePagesKeepTheirPolicy: no page has a script, style or handler in its text, puts a text in as HTML, or names
// another site.
func TestThePagesKeepTheirPolicy(t *testing.T) {
	t.Parallel()
	var files []string
	for _, pages := range []string{"../*/page/*", "../../cmd/*/*/page/*"} {
		found, err := filepath.Glob(pages)
		if err != nil || len(found) < 4 {
			t.Fatalf("%d files in %s: %v", len(found), pages, err)
		}
		files = append(files, found...)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		shown := strings.ReplaceAll(string(text), `"http://www.w3.org/2000/svg"`, "") // the name of a namespace
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc", "<style", " style=", "onclick=", "javascript:", "http://", "https://", "@import", "url("} {
			if strings.Contains(shown, bad) {
				t.Errorf("%s has %q", name, bad)
			}
		}
	}
}

// TestASlowBrowserHoldsUpNoOne: it takes one of the places, gets nothing that is kept for it, and others continue. When
// all places are taken, a browser gets an error that says so.
func TestASlowBrowserHoldsUpNoOne(t *testing.T) {
	t.Parallel()
	streams, asked := NewStreams(), make(chan bool, 1)
	big := []byte(strings.Repeat("x", 1<<20))
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		slow := r.URL.Path == "/slow"
		streams.Send(rw, r, func() []byte {
			if slow {
				select {
				case asked <- true:
				default:
				}
				return big
			}
			time.Sleep(time.Millisecond)
			return []byte("news")
		})
	}))
	t.Cleanup(server.Close) // after the browsers have gone
	open := func(path string) *http.Response {
		t.Helper()
		resp, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	open("/slow") // and reads nothing
	<-asked
	other := open("/")
	if h := other.Header; h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" {
		t.Errorf("a proxy in front may keep events: %v", h)
	}
	quick := bufio.NewScanner(other.Body)
	for n := 0; n < 100; n++ {
		if !quick.Scan() {
			t.Fatalf("the other one ended after %d lines: %v", n, quick.Err())
		}
	}
	var last *http.Response
	for range mostListeners - 1 {
		last = open("/")
	}
	if last.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one too many: %s", last.Status)
	}
}

// TestABrowserThatReadsNothingIsLeft, so that it does not keep its place.
func TestABrowserThatReadsNothingIsLeft(t *testing.T) {
	t.Parallel()
	streams, left := NewStreams(), make(chan struct{})
	streams.timeout = 100 * time.Millisecond
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		streams.Send(rw, r, func() []byte { return []byte(strings.Repeat("x", 1<<20)) })
		close(left)
	}))
	t.Cleanup(server.Close)
	resp, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Error("it still has its place")
	}
}

func TestThisHostIsKnown(t *testing.T) {
	t.Parallel()
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{own: true, strings.ToUpper(own) + ":6433": true, "x" + own: false, "": false, ":6433": false, "localhost.example": false} {
		if got := KnownHost(host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
}
