package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/fencepost/fencepost/election/kv"
)

const (
	// inFlight is how many requests of one proxy are in flight, in addition to its watch. They share one
	// connection, on which a server takes 100 at least.
	inFlight = 64
	// mostAnswer bounds an answer, which is a list in the worst case.
	mostAnswer = 64 << 20
)

// dryRun makes the API server do everything but the write.
var dryRun = url.Values{"dryRun": {"All"}}

// api sends requests for leases in one namespace.
type api struct {
	config    *access
	namespace string
	name      string // of the service, in errors
	slots     chan struct{}
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

// do sends a request, and decodes the answer.
func (a *api) do(ctx context.Context, r request) error {
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	case <-ctx.Done():
		return a.failed(ctx, r, ctx.Err())
	}
	body, err := a.open(ctx, r)
	if err != nil {
		return err
	}
	defer drain(body)
	if r.into == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(body, mostAnswer)).Decode(r.into); err != nil {
		return a.failed(ctx, r, fmt.Errorf("decode the answer: %w", err))
	}
	return nil
}

// open sends a request, and returns the answer. If the API server does not accept the credentials, and there are
// new ones, it sends the request again with these.
func (a *api) open(ctx context.Context, r request) (io.ReadCloser, error) {
	with := a.config.sending()
	answer, err := a.send(ctx, r, with)
	if isStatus(err, http.StatusUnauthorized) && a.config.renew(with) {
		answer, err = a.send(ctx, r, a.config.sending())
	}
	if err != nil {
		return nil, a.failed(ctx, r, err)
	}
	return answer.Body, nil
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
	return s
}
