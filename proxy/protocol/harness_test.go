package protocol_test

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/catalog"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/wire"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var majors = flag.String("majors", "15,18", "the versions of PostgreSQL on which everything is tested")

func eachVersion(t *testing.T, test func(t *testing.T, h *harness)) {
	t.Parallel()
	for _, name := range strings.Split(*majors, ",") {
		major, _ := strconv.Atoi(name)
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			test(t, newHarness(t, major))
		})
	}
}

// harness is a proxy of nothing but settled sessions, in front of one database.
type harness struct {
	t      testing.TB
	pg     *pgtest.Server
	db     string
	major  int
	admin  *pgx.Conn
	addr   string
	config func(*protocol.Config)
	lazy   atomic.Bool  // SetupSQL is not run in the startup
	pieces atomic.Int32 // the length of the pieces in which the session gets what either side sends, 0 for all

	status  atomic.Pointer[fencing.Status]
	catalog atomic.Pointer[fencing.Catalog]
	cache   *sqltext.Cache

	campaign func()                  // NeedCampaign
	register func() *fencing.Refusal // NeedRegister
	join     func(protocol.JoinNeed) protocol.Answer
	dispatch func() // before each plan is sent to the server, nil if none

	mu        sync.Mutex
	rejected  []fencing.Rejection
	announced []protocol.AnnouncedEpoch
	stale     int    // how often the client got the error that it is superseded
	sent      []byte // to the server
	needs     []protocol.NeedKind
	ended     []protocol.Event
	errs      []error
}

// follower is the status of a worker that does not lead.
var follower = &fencing.Status{Holder: fencing.Record{Worker: "other", Epoch: 7}}

func leader(e fencing.Epoch) *fencing.Status {
	return &fencing.Status{Role: fencing.Leader, Epoch: e, Holder: fencing.Record{Worker: "w", Epoch: e}}
}

func newHarness(t testing.TB, major int) *harness {
	t.Helper()
	pg := pgtest.SharedMajor(t, major)
	h := &harness{t: t, pg: pg, db: pg.EmptyDatabase(t), major: major, cache: sqltext.NewCache(1 << 20)}
	h.status.Store(follower)
	h.admin = pg.Connect(t, pgtest.Superuser, h.db)
	h.register = func() *fencing.Refusal { return nil }
	h.campaign = func() {}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.addr = ln.Addr().String()
	var sessions sync.WaitGroup
	sessions.Add(1)
	go func() {
		defer sessions.Done()
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			sessions.Add(1)
			go func() { defer sessions.Done(); h.serve(c) }()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); sessions.Wait() })
	return h
}

// in makes t the test that h fails, until t ends.
func (h *harness) in(t *testing.T) {
	outer := h.t
	h.t = t
	t.Cleanup(func() { h.t = outer })
}

func (h *harness) exec(sql string) {
	h.t.Helper()
	if _, err := h.admin.Exec(h.t.Context(), sql); err != nil {
		h.t.Fatalf("%.300s: %v", sql, err)
	}
}

func (h *harness) readCatalog() {
	h.t.Helper()
	c, err := catalog.Read(h.t.Context(), h.admin)
	if err != nil {
		h.t.Fatal(err)
	}
	h.catalog.Store(c)
}

func (h *harness) connect(params ...string) *wiretest.Conn {
	h.t.Helper()
	c, _ := wiretest.Connect(h.t, h.addr, append([]string{"user", pgtest.App, "database", h.db}, params...)...)
	return c
}

func (h *harness) direct(params ...string) *wiretest.Conn {
	h.t.Helper()
	c, _ := wiretest.Connect(h.t, h.pg.Addr(), append([]string{"user", pgtest.App, "database", h.db}, params...)...)
	return c
}

// relay is one session.
type relay struct {
	h              *harness
	client, server net.Conn
	mu             sync.Mutex
	cond           *sync.Cond
	s              *protocol.Session
	over           bool
}

func (h *harness) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", h.pg.Addr())
	if err != nil {
		return
	}
	defer server.Close()
	r := &relay{h: h, client: client, server: server}
	r.cond = sync.NewCond(&r.mu)
	params, err := r.startup()
	if err != nil {
		h.note(err)
		return
	}
	c := protocol.Config{
		Mode: protocol.ModeFenced, Version: gate.Version(h.major), Cache: h.cache, Candidacy: protocol.Candidacy{Status: h.status.Load, Resource: "r", Incarnation: func() string { return "i" }},
		Worker: "w", Parameters: params, SetUp: !h.lazy.Load(), Catalog: h.catalog.Load,
	}
	if h.config != nil {
		h.config(&c)
	}
	r.s = protocol.New(c)
	ready := r.s.AppendGreeting(nil)
	_, _ = client.Write(wire.AppendReadyForQuery(ready, 'I'))
	var pumps sync.WaitGroup
	pumps.Add(1)
	go func() { defer pumps.Done(); r.down() }()
	r.up()
	_ = server.Close()
	_ = client.Close()
	pumps.Wait()
}

func (h *harness) note(err error) {
	if os.Getenv("PROTOCOL_VERBOSE") != "" {
		fmt.Println("session:", err)
	}
	h.mu.Lock()
	h.errs = append(h.errs, err)
	h.mu.Unlock()
}

// startup relays the startup, and runs SetupSQL at its end. It leaves ReadyForQuery to the caller.
func (r *relay) startup() (params [][]byte, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r.client, head[:]); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:])-4)
	if _, err := io.ReadFull(r.client, body); err != nil {
		return nil, err
	}
	_, _ = r.server.Write(append(head[:], body...))
	setUp := r.h.lazy.Load()
	for {
		msg, err := message(r.server)
		if err != nil {
			return nil, err
		}
		switch msg[0] {
		case 'Z':
			if setUp {
				return params, nil
			}
			setUp = true
			_, _ = r.server.Write(wiretest.Query(protocol.SetupSQL))
			continue
		case 'S':
			if !setUp {
				params = append(params, append([]byte(nil), msg[5:]...))
			} else if r.h.lazy.Load() {
				params = append(params, append([]byte(nil), msg[5:]...))
			}
		case 'C':
			continue
		}
		_, _ = r.client.Write(msg)
	}
}

func message(from io.Reader) ([]byte, error) {
	msg := make([]byte, 5)
	if _, err := io.ReadFull(from, msg); err != nil {
		return nil, err
	}
	msg = append(msg, make([]byte, binary.BigEndian.Uint32(msg[1:])-4)...)
	_, err := io.ReadFull(from, msg[5:])
	return msg, err
}

func (r *relay) up() {
	var in []byte
	buf := make([]byte, 64<<10)
	for {
		for len(in) > 0 {
			wait, more := r.step(&in)
			if !more {
				return
			}
			if wait {
				break
			}
		}
		n, err := r.client.Read(r.piece(buf))
		in = append(in, buf[:n]...)
		if err != nil {
			return
		}
	}
}

func (r *relay) piece(buf []byte) []byte {
	if n := r.h.pieces.Load(); n > 0 {
		return buf[:n]
	}
	return buf
}

// step gives the session what the client has sent. wait says that it needs more, more that it continues.
func (r *relay) step(in *[]byte) (wait, more bool) {
	var p gate.Plan
	r.mu.Lock()
	p.Reset(*in)
	n, need, err := r.s.FromClient(*in, &p)
	out, _ := p.Bytes(nil)
	out = append([]byte(nil), out...)
	*in = (*in)[n:]
	h := r.h
	h.mu.Lock()
	h.sent = append(h.sent, out...)
	h.needs = append(h.needs, need.Kind)
	h.mu.Unlock()
	r.mu.Unlock()
	if h.dispatch != nil {
		h.dispatch()
	}
	if _, err := r.server.Write(out); err != nil {
		return false, false
	}
	if err != nil {
		h.note(err)
		return false, false
	}
	return need.Kind == protocol.NeedMore, r.meet(need)
}

func (r *relay) meet(need protocol.Need) bool {
	h, a := r.h, protocol.Answer{Need: need.Kind}
	switch need.Kind {
	case protocol.NeedNothing, protocol.NeedMore:
		return true
	case protocol.NeedTerminal:
		return false
	case protocol.NeedRoom:
		r.mu.Lock()
		defer r.mu.Unlock()
		for !r.over && !r.s.Is(protocol.Ready) {
			r.cond.Wait()
		}
		return !r.over
	case protocol.NeedUnregister:
		r.mu.Lock()
		r.s.Unregistered()
		r.mu.Unlock()
		return true
	case protocol.NeedRegister:
		a.Refusal = h.register()
	case protocol.NeedCampaign:
		h.campaign()
	case protocol.NeedCatalog: // a test that changes the catalog reads it itself
	case protocol.NeedAnalysis:
		a.Text = sqltext.Analyze(need.Text, need.Settings)
	case protocol.NeedJoin:
		a = h.join(need.Join)
		a.Need = need.Kind
	}
	r.mu.Lock()
	r.s.Answer(a)
	r.mu.Unlock()
	return true
}

func (r *relay) down() {
	defer func() {
		r.mu.Lock()
		r.over = true
		r.cond.Broadcast()
		r.mu.Unlock()
		_ = r.client.(*net.TCPConn).CloseWrite()
	}()
	var in []byte
	buf := make([]byte, 64<<10)
	for {
		n, err := r.server.Read(r.piece(buf))
		if n > 0 {
			in = append(in, buf[:n]...)
			if !r.replies(&in) {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (r *relay) replies(in *[]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var p gate.Segments
	p.Reset(*in)
	n, events, err := r.s.FromServer(*in, &p)
	out, _ := p.Bytes(nil)
	*in = append([]byte(nil), (*in)[n:]...)
	h := r.h
	ended := false
	for _, e := range events {
		h.mu.Lock()
		switch e.Kind {
		case protocol.EventRefused:
			h.rejected = append(h.rejected, *e.Rejection)
		case protocol.EventDiscarded:
			h.stale++
		case protocol.EventEnded:
			h.ended = append(h.ended, e)
			out, ended = append(append([]byte(nil), out...), e.Message...), true
		case protocol.EventAnnounce:
			h.announced = append(h.announced, r.s.Announced()...)
		}
		h.mu.Unlock()
	}
	_, werr := r.client.Write(out)
	r.cond.Broadcast()
	if err != nil {
		h.note(err)
	}
	return err == nil && werr == nil && !ended
}

// short is a context that ends soon.
func short(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
