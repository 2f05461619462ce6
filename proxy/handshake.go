package proxy

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

// maxAuthMessage bounds a client's answer in the authentication
// (PG_MAX_AUTH_TOKEN_LENGTH), maxStartupReply what the server says before its
// first ReadyForQuery.
const (
	maxAuthMessage  = 65535
	maxStartupReply = 1 << 20
)

// errOver says that the session ended in its startup, and that its client was
// told what there is to tell.
var errOver = errors.New("session over")

// session relays one client: it connects to Postgres, lets the two
// authenticate each other, joins the candidacy, and runs the pumps.
func (s *Server) session(ctx context.Context, client net.Conn, start *startup) {
	server, err := dialUpstream(ctx, s.cfg.Upstream, s.cfg.DialTimeout)
	if err != nil {
		s.cfg.Logger.Warn("postgres not reachable", zap.Error(err))
		refuse(client, &fencing.Refusal{
			SQLState: "08006", Message: "Fencepost cannot reach Postgres",
			Hint: "See upstream.address in Fencepost's configuration, and its log.",
		})
		return
	}
	x := newSession(s, client, server, start)
	defer x.close()
	x.log = s.cfg.Logger.With(zap.String("session", x.id), zap.String("database", start.database),
		zap.String("user", start.user), zap.Stringer("client", client.RemoteAddr()))
	if s.register(x) {
		refuse(client, shuttingDown)
		return
	}
	defer s.unregister(x)
	s.cfg.Metrics.Sessions(1)
	defer s.cfg.Metrics.Sessions(-1)
	ctx, x.cancel = context.WithCancel(ctx)
	defer x.cancel()
	if err := x.begin(ctx); err != nil {
		if !errors.Is(err, errOver) {
			refuse(client, err)
			x.log.Debug("session refused", zap.Error(err))
		}
		return
	}
	x.run(ctx)
}

// begin brings both sides to the point where the client may send its first
// statement.
func (x *session) begin(ctx context.Context) error {
	if _, err := x.server.Write(appendStartup(nil, x.start.version, x.start.params)); err != nil {
		return errOver
	}
	if err := x.authenticate(); err != nil {
		return err
	}
	if err := x.settle(); err != nil {
		return err
	}
	standing, told, err := x.join(ctx)
	if err != nil {
		return err
	}
	if x.fromClient.Buffered() > 0 || unread(x.client) > 0 {
		told = 0 // sent by a client that has not read anything yet
	}
	x.mu.Lock()
	x.m.told = told
	x.mu.Unlock()
	return x.greet(standing)
}

// serverMessage reads one whole message of the server in its startup. It is
// good until the next call.
func (x *session) serverMessage() (typ byte, msg []byte, err error) {
	head, err := x.fromServer.Peek(headerLen)
	if err != nil {
		return 0, nil, errOver
	}
	f, _, err := peekFrame(head)
	if err != nil || f.size > maxStartupReply {
		return 0, nil, fmt.Errorf("%w in its startup", errSurprise)
	}
	if cap(x.message) < f.size {
		x.message = make([]byte, f.size)
	}
	x.message = x.message[:f.size]
	if _, err := io.ReadFull(x.fromServer, x.message); err != nil {
		return 0, nil, errOver
	}
	return f.typ, x.message, nil
}

// authenticate relays the authentication until the server says it is over.
func (x *session) authenticate() error {
	for {
		typ, msg, err := x.serverMessage()
		if err != nil {
			return err
		}
		if _, err := x.client.Write(msg); err != nil {
			return errOver
		}
		switch {
		case typ == 'E':
			return errOver
		case typ != 'R' || len(msg) < headerLen+4:
			continue // a notice, or NegotiateProtocolVersion
		}
		switch binary.BigEndian.Uint32(msg[headerLen:]) {
		case 0:
			return nil
		case 12: // SASLFinal: the server goes on by itself
		default:
			if err := x.relayAnswer(); err != nil {
				return err
			}
		}
	}
}

// relayAnswer passes one answer of the client on to the server.
func (x *session) relayAnswer() error {
	head, err := x.fromClient.Peek(headerLen)
	if err != nil {
		return errOver
	}
	f, _, err := peekFrame(head)
	if err != nil || f.typ != 'p' || f.size > maxAuthMessage+headerLen {
		return protocolError("expected password response, got message type %d", head[0])
	}
	msg := make([]byte, f.size)
	if _, err := io.ReadFull(x.fromClient, msg); err != nil {
		return errOver
	}
	if _, err := x.server.Write(msg); err != nil {
		return errOver
	}
	return nil
}

// settle takes what the server says of itself until its first ReadyForQuery,
// which is kept back.
func (x *session) settle() error {
	for {
		typ, msg, err := x.serverMessage()
		if err != nil {
			return err
		}
		switch typ {
		case 'Z':
			return nil
		case 'K':
			x.backendKey(msg[headerLen:])
			continue
		case 'S':
			x.serverParameter(msg[headerLen:])
		}
		if _, err := x.client.Write(msg); err != nil || typ == 'E' {
			return errOver
		}
	}
}

func (x *session) backendKey(body []byte) {
	if len(body) < 8 {
		return
	}
	x.pid = binary.BigEndian.Uint32(body)
	x.keyPID, x.keySecret = x.srv.keys.add(x.pid, append([]byte(nil), body[4:]...))
}

func (x *session) serverParameter(body []byte) {
	if name, value, ok := decodeParameterStatus(body); ok && name == "server_version" {
		end := strings.IndexFunc(value, func(r rune) bool { return r < '0' || r > '9' })
		digits := value
		if end >= 0 {
			digits = value[:end]
		}
		x.version, _ = strconv.Atoi(digits) // 0 for 0: older than every rule that asks
	}
	x.parameters = append(x.parameters, append([]byte(nil), body...))
}

// join makes the connection a member of its candidacy, if it names a resource,
// and waits for the lease as it asked to. told is what the connection knows
// from the start.
func (x *session) join(ctx context.Context) (st *fencing.Standing, told fencing.Epoch, err error) {
	md, err := x.chooseMode()
	if err != nil {
		return nil, 0, err
	}
	var c checks
	standing := func() *fencing.Standing { return noStanding }
	if md == fencedMode {
		claim := x.claim()
		cand, err := x.srv.cfg.Candidates.Join(ctx, claim, x)
		if err != nil {
			return nil, 0, faultRefusal(err)
		}
		x.mu.Lock()
		x.cand = cand
		x.mu.Unlock()
		if err := x.awaitLease(ctx, claim.Campaign); err != nil {
			return nil, 0, err
		}
		standing = x.cand.Standing
		c = newChecks(randomHex(6), x.cand.Fence().ID(), claim.Resource, claim.Worker, x.cand.Incarnation())
	} else {
		c = newChecks(randomHex(6), 0, "", "", "")
	}
	x.mu.Lock()
	x.m = newMachine(md, x.version, standing, x.srv.cache, c)
	x.m.unfencedBy = unfencedRefusal(x.start.user)
	for _, body := range x.parameters {
		x.m.parameter(body)
	}
	x.mu.Unlock()
	if md != passing {
		if err := x.prepareChecks(); err != nil {
			return nil, 0, err
		}
	}
	st = standing()
	if st.May() && !x.cand.SupersededBefore() {
		told = st.Epoch
	}
	return st, told, nil
}

var noStanding = &fencing.Standing{}

func (x *session) chooseMode() (mode, error) {
	if x.start.own.resource != "" {
		return fencedMode, nil
	}
	switch x.srv.cfg.Unfenced(x.start.user) {
	case UnfencedAllow:
		return passing, nil
	case UnfencedRefuse:
		return 0, missingResource(x.start.user)
	default:
		return reading, nil
	}
}

// claim names the candidacy that the connection belongs to.
func (x *session) claim() fencing.Claim {
	own := x.start.own
	addr, _ := netip.ParseAddrPort(x.client.RemoteAddr().String())
	c := fencing.Claim{
		Database: x.start.database, User: x.start.user, Resource: own.resource, Worker: own.worker,
		Client: addr.Addr().Unmap(), Campaign: own.campaign, WorkerTimeout: own.workerTimeout,
	}
	if c.Worker != "" {
		return c
	}
	switch x.srv.cfg.Identity {
	case IdentityClientAddress:
		c.Worker = "client:" + c.Client.String()
	case IdentityProxy:
		c.Worker = "proxy:" + x.srv.cfg.ProxyID
		c.Client = netip.Addr{} // all clients of this proxy are one worker
	default:
		c.Worker = "connection:" + randomHex(8)
	}
	return c
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// awaitLease waits for the candidacy's first attempt, or, where the connection
// asked for it, until the worker leads. It ends when the client goes away.
func (x *session) awaitLease(ctx context.Context, campaign fencing.CampaignMode) error {
	if campaign == fencing.CampaignWait {
		ctx, stop := x.whileClientThere(ctx)
		err := x.cand.AwaitLeader(ctx)
		if gone := stop(); gone {
			return errOver
		}
		if err != nil {
			return faultRefusal(err)
		}
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
	defer cancel()
	_ = x.cand.AwaitFirst(wait) // its standing says how it went
	return nil
}

// whileClientThere returns a context that ends when the client closes its
// connection. stop reports whether that happened.
func (x *session) whileClientThere(parent context.Context) (ctx context.Context, stop func() (gone bool)) {
	ctx, cancel := context.WithCancel(parent)
	done := make(chan bool, 1)
	go func() {
		_, err := x.fromClient.Peek(1)
		var timeout net.Error
		gone := err != nil && !(errors.As(err, &timeout) && timeout.Timeout())
		if gone {
			cancel()
		}
		done <- gone
	}()
	return ctx, func() bool {
		_ = x.client.SetReadDeadline(aLongTimeAgo)
		gone := <-done
		_ = x.client.SetReadDeadline(time.Time{})
		cancel()
		return gone
	}
}

// aLongTimeAgo as a deadline wakes a blocked read at once.
var aLongTimeAgo = time.Unix(1, 0)

// prepareChecks prepares the session's checks on the server before the client
// is let in: a fence that cannot be checked is known here.
func (x *session) prepareChecks() error {
	out := appendSync(x.m.checks.appendPrepare(nil, &x.m.owed))
	n := x.m.owed.len()
	for range n {
		x.m.owed.pop()
	}
	if _, err := x.server.Write(out); err != nil {
		return errOver
	}
	var failed error
	for {
		typ, msg, err := x.serverMessage()
		if err != nil {
			return err
		}
		switch typ {
		case '1':
		case 'Z':
			return failed
		case 'E':
			pe, _ := decodeError(msg[headerLen:])
			if failed = uncheckedRefusal(pe); pe.fatal() {
				return failed
			}
		default:
			if _, err := x.client.Write(msg); err != nil {
				return errOver
			}
		}
	}
}

// greet tells the client its standing, its cancel key, and that it may begin.
func (x *session) greet(st *fencing.Standing) error {
	var out []byte
	if x.m.mode == fencedMode {
		x.m.reported = st
		out = appendParameterStatus(out, "fencepost.resource", asciiOnly(x.m.checks.resource))
		out = appendParameterStatus(out, "fencepost.worker", asciiOnly(x.m.checks.worker))
		out = appendParameterStatus(out, "fencepost.role", shownRole(st))
		out = appendParameterStatus(out, "fencepost.epoch", strconv.FormatInt(int64(shownEpoch(st)), 10))
	}
	if x.keyPID != 0 {
		out = appendBackendKeyData(out, x.keyPID, x.keySecret)
	}
	if _, err := x.client.Write(appendReadyForQuery(out, 'I')); err != nil {
		return errOver
	}
	return nil
}
