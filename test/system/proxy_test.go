package system

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// proxy is a fencepost serve process.
type proxy struct {
	*process
	t       testing.TB
	address string // for workers
	id      string
	admin   string
	read    chan struct{} // closed when its whole log has been read

	mu struct {
		sync.Mutex
		text  []string
		lines []logLine
	}
}

// logLine is one line of a proxy's log.
type logLine map[string]any

func (l logLine) text(key string) string { s, _ := l[key].(string); return s }

func (l logLine) number(key string) int64 { n, _ := l[key].(float64); return int64(n) }

// at returns when the line was written.
func (l logLine) at(t testing.TB) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, l.text("ts"))
	if err != nil {
		t.Fatalf("the time of a log line: %v in %v", err, l)
	}
	return at
}

// startProxy runs serve with these settings and returns when it is serving. It is ended
// in an orderly way when the test ends.
func startProxy(t testing.TB, settings ...string) *proxy {
	t.Helper()
	p := launchProxy(t, settings...)
	eventually(t, patience, "fencepost serve to serve", func() bool { return p.ended() || len(p.lines("serving")) == 1 })
	serving := p.lines("serving")
	if len(serving) != 1 {
		t.Fatalf("fencepost serve ended with code %d:\n%s", p.code, p.log())
	}
	p.address, p.admin, p.id = serving[0].text("listen"), serving[0].text("admin"), serving[0].text("proxy")
	return p
}

// launchProxy runs serve and returns at once.
func launchProxy(t testing.TB, settings ...string) *proxy {
	t.Helper()
	p := &proxy{t: t, read: make(chan struct{})}
	cmd := exec.Command(program(t), "serve")
	cmd.Env = environment(settings...)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatalf("create a pipe: %v", err)
	}
	cmd.Stdout, cmd.Stderr = write, write
	p.process = startProcess(t, "fencepost serve", cmd)
	_ = write.Close() // the child has its own
	go func() {
		defer close(p.read)
		defer read.Close()
		p.collect(read)
	}()
	t.Cleanup(p.end)
	return p
}

// end ends the proxy in an orderly way, and checks its log for what must never be
// there.
func (p *proxy) end() {
	p.thaw(p.t)
	p.signal(p.t, syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Errorf("the proxy did not end within %s of SIGTERM", patience)
		p.kill(p.t)
	}
	<-p.read
	log := p.log()
	if strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic") || strings.Contains(log, `"msg":"oracle:`) {
		p.t.Errorf("the proxy's log shows a bug:\n%s", log)
	} else if p.t.Failed() {
		p.t.Logf("end of the log of the proxy at %s:\n%s", p.address, tail(log, 4000))
	}
}

func (p *proxy) collect(from io.Reader) {
	in := bufio.NewScanner(from)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var line logLine
		err := json.Unmarshal(in.Bytes(), &line)
		p.mu.Lock()
		p.mu.text = append(p.mu.text, in.Text())
		if err == nil {
			p.mu.lines = append(p.mu.lines, line)
		}
		p.mu.Unlock()
	}
}

func (p *proxy) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.mu.text, "\n")
}

// lines returns the lines with this message and these fields (key, value, ...).
func (p *proxy) lines(msg string, fields ...string) []logLine {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.mu.lines), func(l logLine) bool {
		for i := 0; i < len(fields); i += 2 {
			if l.text(fields[i]) != fields[i+1] {
				return true
			}
		}
		return l.text("msg") != msg
	})
}

// await waits for such a line and returns the first.
func (p *proxy) await(t testing.TB, msg string, fields ...string) logLine {
	t.Helper()
	var found []logLine
	eventually(t, patience, fmt.Sprintf("the log line %q with %q", msg, fields), func() bool {
		found = p.lines(msg, fields...)
		return len(found) > 0
	})
	return found[0]
}

// ask requests a path of the admin address.
func (p *proxy) ask(t testing.TB, path string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + p.admin + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// dsn returns the DSN of a connection through the proxy: params are name, value, ...
// without the prefix fencepost.
func (p *proxy) dsn(user, db string, params ...string) string {
	q := url.Values{"sslmode": {"disable"}}
	for i := 0; i < len(params); i += 2 {
		q.Set("fencepost."+params[i], params[i+1])
	}
	// Like libpq, pgx does not decode a plus sign as a space.
	return fmt.Sprintf("postgres://%s@%s/%s?%s", user, p.address, db, strings.ReplaceAll(q.Encode(), "+", "%20"))
}

func tail(text string, most int) string {
	if len(text) > most {
		return "..." + text[len(text)-most:]
	}
	return text
}
