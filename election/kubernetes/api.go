package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/fencepost/fencepost/election/kv"
)

const (
	// inFlight is how many requests of one proxy are under way, beside its watch. They share one
	// connection, on which a server takes 100 at least.
	inFlight = 64
	// mostAnswer bounds an answer, which is a list in the worst case.
	mostAnswer = 64 << 20
	// leastPause is how long nothing is sent after an answer that asks for a pause and does not
	// say how long; mostPause is the longest pause that is granted.
	leastPause = time.Second
	mostPause  = 30 * time.Second
)

// dryRun makes the API server do everything but the write.
var dryRun = url.Values{"dryRun": {"All"}}

// api sends requests for leases in one namespace.
type api struct {
	config    *access
	namespace string
	name      string // of the service, in errors
	slots     chan struct{}
	rests     [kinds]rest
}

func newAPI(config *access, namespace string) *api {
	return &api{config: config, namespace: namespace, name: "Kubernetes at " + config.now().server.Host, slots: make(chan struct{}, inFlight)}
}

// request is a request about leases.
type request struct {
	verb   string // as in a Role
	method string
	name   string // of one lease; "" means all
	query  url.Values
	body   *lease
	into   any // what a good answer is decoded into
}

// The kinds of requests that rest apart: an API server that is too busy for lists may well have time for
// a renewal, which cannot wait.
const (
	ofOne  = iota // about one lease
	ofMany        // a list or a watch
	kinds
)

func (r request) kind() int {
	if r.name == "" && r.body == nil {
		return ofMany
	}
	return ofOne
}

// what says what the request is for, in errors.
func (r request) what() string {
	if r.name == "" && r.body != nil {
		return r.verb + " the lease " + r.body.Metadata.Name
	}
	if r.name == "" {
		return r.verb + " leases"
	}
	return r.verb + " the lease " + r.name
}

// do sends a request, and sends it again after a pause if the API server asks for that, and with
// another token if it refuses the one that was sent and there is a new one.
func (a *api) do(ctx context.Context, r request) error {
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	case <-ctx.Done():
		return a.failed(ctx, r, ctx.Err())
	}
	return a.repeat(ctx, r, func(with sent) error {
		answer, err := a.send(ctx, r, with)
		if err != nil {
			return err
		}
		defer drain(answer.Body)
		if r.into == nil {
			return nil
		}
		if err := json.NewDecoder(io.LimitReader(answer.Body, mostAnswer)).Decode(r.into); err != nil {
			return fmt.Errorf("decode the answer: %w", err)
		}
		return nil
	})
}

// stream sends a request whose answer is events, until it ends.
func (a *api) stream(ctx context.Context, r request, events chan<- event) error {
	return a.repeat(ctx, r, func(with sent) error {
		answer, err := a.send(ctx, r, with)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		for lines := json.NewDecoder(answer.Body); ; {
			var e event
			if err := lines.Decode(&e); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			select {
			case events <- e:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

// repeat makes an attempt, and makes it again as do says.
func (a *api) repeat(ctx context.Context, r request, attempt func(sent) error) error {
	rest := &a.rests[r.kind()]
	for renewed := false; ; {
		if err := rest.await(ctx); err != nil {
			return a.failed(ctx, r, err)
		}
		with := a.config.sending()
		err := attempt(with)
		var status *statusError
		switch {
		case !errors.As(err, &status):
		case status.code == http.StatusUnauthorized && !renewed && a.config.renew(with):
			renewed = true
			continue
		case status.again(r):
			rest.begin(status)
			continue
		}
		return a.failed(ctx, r, err)
	}
}

// rest is for how long the API server wants nothing of a kind to be sent.
type rest struct {
	mu      sync.Mutex
	until   time.Time
	refused *statusError // that asked for it
}

// await waits until the rest is over. It returns the API server's answer at once if the context ends
// before that.
func (p *rest) await(ctx context.Context) error {
	p.mu.Lock()
	until, refused := p.until, p.refused
	p.mu.Unlock()
	wait := time.Until(until)
	if wait <= 0 {
		return nil
	}
	if end, ok := ctx.Deadline(); ok && end.Before(until) {
		return refused
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *rest) begin(status *statusError) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := time.Now().Add(status.pause); until.After(p.until) {
		p.until, p.refused = until, status
	}
}

// send sends a request once. Any answer but a good one is an error, a *statusError if the API
// server has given it.
func (a *api) send(ctx context.Context, r request, with sent) (*http.Response, error) {
	where := *with.to.server
	where.Path += "/apis/coordination.k8s.io/v1/namespaces/" + a.namespace + "/leases"
	if r.name != "" {
		where.Path += "/" + r.name
	}
	where.RawQuery = r.query.Encode()
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, where.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "fencepost")
	if with.token != "" {
		req.Header.Set("Authorization", "Bearer "+with.token)
	}
	answer, err := with.to.transport(with.security).RoundTrip(req) // which follows no redirection
	if err != nil {
		return nil, &kv.Unreachable{Service: a.name, Err: err}
	}
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		defer drain(answer.Body)
		return nil, statusOf(answer)
	}
	return answer, nil
}

func (a *api) close() { a.config.close() }

// drain makes the connection ready for another request.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}

// statusOf returns what an answer that is not a good one says.
func statusOf(answer *http.Response) *statusError {
	s := &statusError{code: answer.StatusCode}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	s.read(text)
	if s.message == "" {
		s.message = http.StatusText(answer.StatusCode)
	}
	if seconds, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && seconds >= 0 {
		s.pause, s.asked = min(max(time.Duration(min(seconds, 3600))*time.Second, leastPause/10), mostPause), true
	} else {
		s.pause = leastPause
	}
	return s
}
