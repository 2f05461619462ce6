package system

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// shown is what a proxy shows of the resource.
type shown struct {
	State          string     `json:"state"`
	StateSince     *time.Time `json:"state_since"`
	Reason         string     `json:"state_reason"`
	ConfirmedUntil *time.Time `json:"confirmed_until"`
	Leader         string     `json:"leader"`
	Proxy          string     `json:"proxy"`
	Epoch          int64      `json:"epoch"`
	GrantedTo      string     `json:"granted_to"`
	Here           bool       `json:"here"`
	Leaderless     float64    `json:"leaderless_seconds"`
	Workers        []struct {
		Worker  string   `json:"worker"`
		Timeout *float64 `json:"worker_timeout_seconds"`
	} `json:"workers"`
}

func (h *cluster) shown(p *process.Server) (s shown) {
	h.t.Helper()
	_, body := p.Get(h.t, "/v1/resources/"+h.db+"/"+resource)
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		h.t.Fatalf("%v in %s", err, body)
	}
	return s
}

// awaitState waits until the proxies show the state. A resource that is not led has no
// leader, wherever one looks.
func (h *cluster) awaitState(state, leader string, at ...*process.Server) {
	h.t.Helper()
	for i, p := range at {
		var wrong string
		if !process.Holds(process.Patience, func() bool { wrong = h.differs(p, state, leader); return wrong == "" }) {
			h.t.Fatalf("proxy %d: %s", i, wrong)
		}
	}
}

// leaderless reports whether somebody should lead a resource in this state, and nobody does.
func leaderless(state string) bool { return !slices.Contains([]string{"led", "idle", "paused"}, state) }

// differs says where a proxy shows something else than this state and leader, "" if it does not.
func (h *cluster) differs(p *process.Server, state, leader string) string {
	h.t.Helper()
	s := h.shown(p)
	if s.State != state || s.Leader != leader || (s.Leaderless > 0) != leaderless(state) {
		return fmt.Sprintf("it shows %+v; want %s with leader %q", s, state, leader)
	}
	if state == "unknown" && s.Reason == "" {
		return fmt.Sprintf("it does not say why: %+v", s)
	}
	if seconds, ok := h.metric(p, "fencepost_leaderless_seconds"); !ok || (seconds > 0) != leaderless(state) {
		return fmt.Sprintf("leaderless_seconds is %v; the resource is %s", seconds, state)
	}
	_, table := h.command("status", "--admin", p.Admin)
	return h.tableDiffers(table, state, leader)
}

// awaitWorker waits until a proxy shows that a worker is there, which may wait to lead.
func (h *cluster) awaitWorker(p *process.Server, resource, worker string) {
	h.t.Helper()
	process.Eventually(h.t, process.Patience, worker+" to be there", func() bool {
		_, body := p.Get(h.t, "/v1/resources/"+h.db+"/"+resource)
		return strings.Contains(body, fmt.Sprintf(`"worker": %q`, worker))
	})
}

// tableDiffers says in what the line of the resource in what status prints differs, "" if it does not.
func (h *cluster) tableDiffers(table, state, leader string) string {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[0] == h.db && fields[1] == resource {
			if fields[2] != state || leader != "" && fields[3] != leader || leader == "" && strings.Contains(line, "led ") {
				return fmt.Sprintf("want %s with leader %q:\n%s", state, leader, table)
			}
			return ""
		}
	}
	return "want the resource:\n" + table
}

// metric returns the value of the resource's metric.
func (h *cluster) metric(p *process.Server, name string) (value float64, ok bool) {
	h.t.Helper()
	_, text := p.Get(h.t, "/metrics")
	labels := regexp.QuoteMeta(fmt.Sprintf("{database=%q,resource=%q}", h.db, resource))
	m := regexp.MustCompile(`(?m)^` + name + labels + ` (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	value, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		h.t.Fatal(err)
	}
	return value, true
}

// awaitInDatabase waits until status --dsn shows the state to the control role. The proxies say within about a second what
// their workers do.
func (h *cluster) awaitInDatabase(state, leader string) {
	h.t.Helper()
	var wrong string
	if !process.Holds(process.Patience, func() bool {
		code, table := h.command("status", "--dsn", h.pg.DSN(pgtest.Control, h.db))
		if code != 0 {
			h.t.Fatalf("status: code %d: %s", code, table)
		}
		wrong = h.tableDiffers(table, state, leader)
		return wrong == ""
	}) {
		h.t.Fatal(wrong)
	}
}

// vanish ends a connection without a word, like the death of its process.
func (c *client) vanish() { _ = c.PgConn().Conn().Close() }

// TestAResourceThatNoOneLeadsIsNotShownAsLed kills all workers of two proxies, the leader
// first at one of them and then at the other.
func TestAResourceThatNoOneLeadsIsNotShownAsLed(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	one, two := h.proxy(), h.proxy()
	first := h.join(one, "first", "campaign", "wait")
	observer := h.join(two, "observer", "campaign", "off")
	h.awaitState("led", "first", one, two)
	for i, p := range []*process.Server{one, two} {
		until := h.shown(p).ConfirmedUntil
		if until == nil || time.Until(*until) > 10*time.Second {
			t.Errorf("proxy %d shows the lease confirmed until %v", i, until)
		}
	}
	h.awaitInDatabase("led", "first")
	first.vanish()
	observer.vanish()
	h.awaitState("absent", "", one, two)
	h.awaitInDatabase("absent", "")
	if s := h.shown(one); s.GrantedTo != "first" || s.StateSince == nil || s.Here {
		t.Errorf("the proxy of the last leader shows %+v", s)
	}
	second := h.join(two, "second", "campaign", "wait")
	h.awaitState("led", "second", two, one) // although the other one has no worker
	h.awaitInDatabase("led", "second")
	second.vanish()
	h.awaitState("absent", "", two, one)
}

// TestTheStateIsThatOfAllProxies: a proxy without a worker that campaigns tells a resource that nobody needs to lead from one
// without workers, and so does the database, whatever lease service there is.
func TestTheStateIsThatOfAllProxies(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, provider, with(long))
			one, two := h.proxy(), h.proxy()
			a := h.join(one, "a", "campaign", "wait", "worker_timeout", "500ms")
			h.join(two, "observer", "campaign", "off")
			h.awaitState("idle", "", one, two)
			h.awaitInDatabase("idle", "")
			b := h.join(two, "b", "campaign", "wait", "worker_timeout", "0")
			h.awaitState("led", "b", one, two)
			h.awaitInDatabase("led", "b")
			process.Eventually(t, process.Patience, "both proxies to know the leader's proxy", func() bool {
				of := h.shown(two).Proxy
				return of != "" && h.shown(one).Proxy == of
			})
			a.leave()
			b.leave()
			h.awaitState("absent", "", one, two)
			h.awaitInDatabase("absent", "")
		})
	}
}

// TestATakeoverCountsFromTheLeadersLastSign freezes a leader, or kills its proxy, while
// another worker waits. The metric includes the time until that is noticed; the part after
// the lease was free has its own.
func TestATakeoverCountsFromTheLeadersLastSign(t *testing.T) {
	t.Parallel()
	// The leader must not count as frozen before the other worker waits.
	const timeout, ttl = 5 * time.Second, 2 * time.Second
	for _, how := range []string{"frozen, one proxy", "proxy killed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, "postgres", with("LEASE_TTL="+ttl.String(), "LEASE_WORKER_TIMEOUT="+timeout.String()))
			p := h.proxy()
			at, patience, noticed := p, timeout, timeout
			if how != "frozen, one proxy" {
				at = h.proxy()
			}
			if how == "proxy killed" {
				patience, noticed = 0, ttl
			}
			leader, next := h.worker("leader"), h.worker("next")
			since := time.Now()
			leader.must("connect", h.dsn(p, "leader", "campaign", "wait", "worker_timeout", patience.String()))
			next.tell(order{Do: "connect", Text: h.dsn(at, "next", "campaign", "wait", "worker_timeout", "0")})
			h.awaitWorker(at, resource, "next")
			if how == "proxy killed" {
				p.Kill(t)
			} else {
				leader.Freeze(t)
			}
			if f := next.answer().Failure; f != nil {
				t.Fatalf("the takeover: %v", f)
			}
			var took float64
			process.Eventually(t, process.Patience, "the takeover to be measured", func() bool {
				took, _ = h.metric(at, "fencepost_takeover_seconds_sum")
				return took > 0
			})
			grant, ok := h.metric(at, "fencepost_takeover_grant_seconds_sum")
			if took < noticed.Seconds()-0.1 || took > time.Since(since).Seconds()+ttl.Seconds() || !ok || grant > took-noticed.Seconds()+0.5 {
				t.Errorf("a takeover of %v, of which %v after the lease was free; the leader connected %v ago", took, grant, time.Since(since))
			}
		})
	}
}

// TestAGrantThatFailsIsShown lets the database refuse every grant, as one whose disk is full does.
func TestAGrantThatFailsIsShown(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p := h.proxy()
	first := h.join(p, "first", "campaign", "wait")
	h.awaitState("led", "first", p)
	const says = "could not extend file"
	h.pg.Exec(t, pgtest.Superuser, h.db,
		"CREATE FUNCTION public.no_space() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE disk_full USING MESSAGE = '"+says+"'; END$$",
		"CREATE TRIGGER no_space BEFORE INSERT ON fencepost.grants FOR EACH ROW EXECUTE FUNCTION public.no_space()")
	first.leave()
	h.join(p, "next")
	process.Eventually(t, process.Patience, "the reason why nobody leads", func() bool {
		s := h.shown(p)
		return s.State == "blocked" && strings.Contains(s.Reason, says)
	})
	if _, table := h.command("status", "--admin", p.Admin); !strings.Contains(table, says) {
		t.Errorf("fencepost status does not say why nobody leads:\n%s", table)
	}
	h.pg.Exec(t, pgtest.Superuser, h.db, "DROP TRIGGER no_space ON fencepost.grants")
	h.awaitState("led", "next", p)
}

// TestALeaseWithoutAGrantIsNoLead: a worker that led before has its lease again, and its grant is blocked. Another proxy, which
// sees the lease of the worker that was granted the recorded epoch, learns from the database that it does not lead.
func TestALeaseWithoutAGrantIsNoLead(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with("LEASE_TTL=60s"))
	one, two := h.proxy(), h.proxy()
	a := h.join(one, "a", "campaign", "wait", "worker_timeout", "500ms")
	a.must("INSERT INTO work VALUES ('first')")
	h.join(two, "b", "campaign", "off")
	h.awaitState("idle", "", one) // it is silent
	locks := h.pg.Connect(t, pgtest.Superuser, h.db)
	if _, err := locks.Exec(t.Context(), "BEGIN; SELECT FROM fencepost.fence FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond): // often enough not to be silent
				_ = a.exec("INSERT INTO work VALUES ('again')")
			}
		}
	}()
	h.awaitState("blocked", "", one)
	process.Eventually(t, process.Patience, "the other proxy to know that nobody leads", func() bool {
		s := h.shown(two)
		return s.State != "led" && s.Leaderless > 0
	})
	process.Always(t, 2*time.Second, "nobody leads", func() bool { return h.shown(two).State != "led" })
	if _, err := locks.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	h.awaitState("led", "a", one, two)
	close(stop)
	<-stopped
}
