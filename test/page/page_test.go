//go:build chromium

package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/audit/evidence"
	"github.com/fencepost/fencepost/internal/child"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// workerVariable turns this test program into a worker, which gets its DSN.
const workerVariable = "FENCEPOST_TEST_PAGE_WORKER"

func TestMain(m *testing.M) {
	if dsn := os.Getenv(workerVariable); dsn != "" {
		work(dsn)
		return
	}
	os.Exit(m.Run())
}

// work writes while it leads, for ever. When it was frozen, it goes on with a write.
func work(dsn string) {
	ctx := context.Background()
	for ; ; time.Sleep(100 * time.Millisecond) {
		conn, err := pgx.Connect(ctx, dsn)
		for err == nil {
			var role string
			if err = conn.QueryRow(ctx, "SHOW fencepost.role").Scan(&role); err != nil {
				break
			}
			for role == "leader" && err == nil {
				_, err = conn.Exec(ctx, "INSERT INTO work VALUES ('a secret', 42)")
				time.Sleep(50 * time.Millisecond)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if conn != nil {
			_ = conn.Close(ctx) // it is broken
		}
	}
}

// hostile are names that would act on a page, a shell or a terminal which takes them for its own.
var hostile = struct{ database, resource, worker, application string }{
	database:    `<b>O'Reilly</b> $(touch "PWNED")`,
	resource:    `-<img src=x onerror="document.title='PWNED'">'; touch PWNED #`,
	worker:      "</td><script>document.title='PWNED'</script>\u202e\u2066$(touch PWNED)`touch PWNED`'\\",
	application: `<svg onload="document.title='PWNED'">{{7*7}}` + strings.Repeat("x", 20),
}

// stage is a system, and what the visitor of its page may ask for.
type stage struct {
	t        *testing.T
	pg       *pgtest.Server
	db       string
	settings []string
	one, two *process.Server
	workers  map[string]*process.Process
}

func newStage(t *testing.T) *stage {
	s := &stage{t: t, pg: pgtest.Start(t), db: "shop", workers: map[string]*process.Process{}}
	for _, db := range []string{s.db, hostile.database} {
		s.pg.Exec(t, pgtest.Superuser, "postgres", "CREATE DATABASE "+pgx.Identifier{db}.Sanitize()+" TEMPLATE "+pgtest.Template)
		s.pg.Exec(t, pgtest.App, url.PathEscape(db), "CREATE TABLE work (what text, amount int)")
	}
	s.settings = []string{
		"FENCEPOST_UPSTREAM_ADDRESS=" + s.pg.Addr(), "FENCEPOST_CONTROL_USER=" + pgtest.Control, "FENCEPOST_LEASE_TTL=3s", "FENCEPOST_LEASE_GRACE=300ms",
		"FENCEPOST_DRAIN_TIMEOUT=1s",
	}
	s.one = process.ServeOn(t, s.pg, append(s.settings, "FENCEPOST_PROXY_ID=fence-1")...)
	s.two = process.ServeOn(t, s.pg, append(s.settings, "FENCEPOST_PROXY_ID=fence-2")...)
	s.worker(s.one, "worker-a", s.db, "billing", "invoices")
	s.lead(s.db, "billing")
	s.worker(s.two, "worker-b", s.db, "billing", "invoices")
	s.worker(s.two, "mailer", s.db, "mail", "mailer")
	s.worker(s.one, "reporter", s.db, "reports", "reporter")
	s.worker(s.one, "stock-1", s.db, "stock", "stock")
	for _, resource := range []string{"mail", "reports", "stock"} {
		s.lead(s.db, resource)
	}
	return s
}

// worker starts a worker, which may be silent for two seconds.
func (s *stage) worker(p *process.Server, name, database, resource, application string) {
	dsn := p.DSN(pgtest.App, url.PathEscape(database), "resource", resource, "worker", name, "worker_timeout", "2s")
	cmd := exec.Command(os.Args[0])
	cmd.Env = process.Environment(workerVariable + "=" + dsn + "&application_name=" + strings.ReplaceAll(url.QueryEscape(application), "+", "%20"))
	cmd.Stderr = os.Stderr
	s.workers[name] = process.Start(s.t, name, cmd)
}

// lead waits until a resource was granted an epoch.
func (s *stage) lead(database, resource string) {
	process.Eventually(s.t, process.Patience, resource+" to be led", func() bool {
		return pgtest.Ask[bool](s.t, s.pg, database, "SELECT EXISTS (SELECT FROM fencepost.grants WHERE resource = $1)", resource)
	})
}

// do does what the visitor asks for.
func (s *stage) do(what string, args []string) (any, error) {
	switch what {
	case "hostile":
		s.worker(s.one, hostile.worker, hostile.database, hostile.resource, hostile.application)
	case "freeze":
		s.workers[args[0]].Freeze(s.t)
	case "thaw":
		s.workers[args[0]].Thaw(s.t)
	case "kill-proxy":
		map[string]*process.Server{"fence-1": s.one, "fence-2": s.two}[args[0]].Kill(s.t)
	case "block": // whoever has prepared this keeps the row of the fence
		s.pg.Exec(s.t, pgtest.Superuser, s.db, "BEGIN; SELECT FROM fencepost.fence WHERE resource = '"+args[0]+"' FOR UPDATE; PREPARE TRANSACTION 'stuck'")
		s.workers["stock-1"].Kill(s.t)
		s.worker(s.one, "stock-2", s.db, "stock", "stock")
	case "unblock":
		s.unblock()
	case "stop-postgres":
		s.pg.Crash(s.t)
	case "start-postgres":
		s.pg.Restart(s.t)
	case "shell": // as an operator does who has copied it
		cmd := exec.Command("bash", "-c", `fencepost() { "$FENCEPOST" "$@"; }; `+args[0])
		cmd.Dir = s.t.TempDir()
		cmd.Env = process.Environment(append(s.settings, "FENCEPOST="+process.Program(s.t))...)
		out, err := cmd.CombinedOutput()
		left, _ := os.ReadDir(cmd.Dir)
		if len(left) > 0 {
			return nil, fmt.Errorf("%s has made %v", args[0], left)
		}
		return string(out), err
	default:
		return nil, fmt.Errorf("the visitor asks for %q", what)
	}
	return nil, nil
}

// unblock ends what block has prepared, if there is one.
func (s *stage) unblock() {
	if pgtest.Ask[bool](s.t, s.pg, s.db, "SELECT EXISTS (SELECT FROM pg_prepared_xacts)") {
		s.pg.Exec(s.t, pgtest.Superuser, s.db, "ROLLBACK PREPARED 'stuck'")
	}
}

// visit runs the visitor, and does what it asks for.
func visit(t *testing.T, do func(what string, args []string) (any, error), args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "node", append([]string{"page.js"}, args...)...)
	cmd.Stderr = os.Stderr
	child.OwnSession(cmd, syscall.SIGKILL)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := serve(t, in, out, do); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the visitor: %v", err)
	}
}

// serve answers what the visitor asks for, line by line, until it has ended.
func serve(t *testing.T, in io.WriteCloser, out io.Reader, do func(what string, args []string) (any, error)) error {
	defer in.Close()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var asked struct {
			Do   string
			Args []string
		}
		if !strings.HasPrefix(lines.Text(), "{") {
			t.Log(lines.Text())
			continue
		}
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return err
		}
		var answer struct {
			Value any    `json:"value"`
			Error string `json:"error,omitempty"`
		}
		value, err := do(asked.Do, asked.Args)
		answer.Value = value
		if err != nil {
			answer.Error = fmt.Sprintf("%v: %v", err, value)
		}
		if err := json.NewEncoder(in).Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

// TestThePageThroughFaults looks at the page of a system in which a leader freezes, a takeover is blocked, a resource is
// paused, a proxy dies, Postgres stops, and at last the proxy of the page dies.
func TestThePageThroughFaults(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	defer s.unblock()
	names, err := json.Marshal(map[string]string{"database": hostile.database, "resource": hostile.resource, "worker": hostile.worker, "application": hostile.application, "db": s.db})
	if err != nil {
		t.Fatal(err)
	}
	visit(t, s.do, "faults", "http://"+s.one.Admin+"/", string(names))
}

// many is a proxy with 1,000 resources, one of which has 10,000 terms.
func many() *admin.Server {
	states := status.States()
	var resources []status.Resource
	for i := range 1000 {
		worker := fmt.Sprintf("host-%d:%d:k%d", i%40, 4000+i, i)
		r := status.Resource{
			Database: "shop", Resource: fmt.Sprintf("resource-%04d", i), State: status.Led, StateSince: time.Now().Add(-time.Hour), Local: true, LeaseLeft: 8 * time.Second,
			Record:      fencing.Record{Epoch: fencing.Epoch(i + 1), Worker: worker, GrantedAt: time.Now().Add(-time.Hour)},
			Candidacies: []status.Candidacy{{Worker: worker, User: "app", Members: 3, Status: fencing.Status{Role: fencing.Leader}, WorkerTimeout: 30 * time.Second}},
		}
		if i%20 == 0 {
			r.State, r.Local, r.LeaseLeft = states[i/20%len(states)], false, 0
		}
		resources = append(resources, r)
	}
	terms := make([]evidence.Term, 10_000) // the newest first
	for i, at := 0, time.Now(); i < len(terms); i++ {
		to := at
		at = at.Add(-time.Duration(1+i%7) * 90 * time.Second)
		terms[i] = evidence.Term{Resource: "resource-0001", Epoch: int64(len(terms) - i), Worker: fmt.Sprintf("host-%d:%d:k", i%40, i), From: at, To: &to, Source: "postgres"}
	}
	terms[0].To = nil
	return &admin.Server{
		Proxy: "fence-1", Resources: func() []status.Resource { return resources }, Metrics: admin.NewMetrics(),
		Ready: func(context.Context) admin.Readiness {
			return admin.Readiness{Ready: true, Upstream: "ok", Election: "ok"}
		},
		History: func(context.Context, string, string, time.Time, time.Time) (any, error) {
			return evidence.Period{Terms: terms, Refusals: []evidence.Refusal{}, Orders: []evidence.Order{}}, nil
		},
	}
}

// driver stands in front of a proxy, and sends its events itself once somebody drives it.
type driver struct {
	http.Handler
	events chan []byte
	views  []admin.ResourceView
	driven int
}

func newDriver(t *testing.T, to string) *driver {
	t.Helper()
	d := &driver{Handler: httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: to}), events: make(chan []byte)}
	resp, err := http.Get("http://" + to + "/v1/resources")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list admin.ResourceList
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	d.views = list.Resources
	return d
}

func (d *driver) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/events" {
		d.Handler.ServeHTTP(rw, r)
		return
	}
	rw.Header().Set("Content-Type", "text/event-stream")
	send := func(text []byte) bool {
		_, err := fmt.Fprintf(rw, "data: %s\n\n", text)
		return err == nil && http.NewResponseController(rw).Flush() == nil
	}
	if !send(d.event(d.views, true)) {
		return
	}
	for {
		select {
		case text := <-d.events:
			if !send(text) {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

func (d *driver) event(views []admin.ResourceView, whole bool) []byte {
	text, err := json.Marshal(map[string]any{"proxy": fmt.Sprintf("after %d events", d.driven), "at": time.Now(), "whole": whole, "resources": views, "readiness": admin.Readiness{Ready: true, Upstream: "ok", Election: "ok"}})
	if err != nil {
		panic(err) // it consists of texts and numbers
	}
	return text
}

// drive sends events, each of which changes 30 resources.
func (d *driver) drive(n int) {
	states := status.States()
	for i := range n {
		changed := make([]admin.ResourceView, 0, 30)
		for j := range cap(changed) {
			v := &d.views[(i*37+j*13)%len(d.views)]
			v.Epoch++
			if j < 2 {
				v.State, v.StateReason = states[(i+j)%len(states)].String(), fmt.Sprintf("reason %d", i)
			}
			changed = append(changed, *v)
		}
		d.driven++
		d.events <- d.event(changed, false)
	}
}

// TestThePageWithMany: the page is quick with 1,000 resources and 10,000 terms, and an hour of events leaves its memory flat.
func TestThePageWithMany(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- many().Serve(ctx, l) }()
	defer func() {
		end()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	d := newDriver(t, l.Addr().String())
	front := httptest.NewServer(d)
	defer front.Close()
	visit(t, func(_ string, args []string) (any, error) {
		n, err := strconv.Atoi(args[0])
		d.drive(n)
		return nil, err
	}, "many", "http://"+l.Addr().String()+"/", `{"driven": "`+front.URL+`/"}`)
}
