package kubernetes

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/files"
)

// serviceAccount is where a pod has its credentials.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// A connection on which nothing arrives for the first time is tested with a ping, and given up
// when that is not answered within the second.
const (
	pingAfter   = 2 * time.Second
	pingTimeout = 4 * time.Second
	dialTimeout = 3 * time.Second
	// handshakeTimeout leaves time to a busy API server. Each request has a limit of its own.
	handshakeTimeout = 10 * time.Second
	idleTimeout      = 30 * time.Second
)

// access is how the API server is reached. What comes from files is read again when they change.
type access struct {
	file *files.Watched[*target] // the kubeconfig; nil in a pod
	pod  *target
}

// target is an API server, and the credentials for it.
type target struct {
	server    *url.URL
	namespace string // "" if nothing names one
	login     string // what to do if the credentials are not accepted
	proxy     func(*http.Request) (*url.URL, error)
	secret    *files.Watched[string] // the token; nil without one
	security  *files.Watched[*tls.Config]

	mu   sync.Mutex
	made *http.Transport
	with *tls.Config // what it was made with
}

// now returns the API server as it is configured at the moment.
func (a *access) now() *target {
	if a.file != nil {
		return a.file.Get()
	}
	return a.pod
}

// sent is what a request is sent with.
type sent struct {
	to       *target
	token    string
	security *tls.Config
}

// sending returns what a request is sent with now.
func (a *access) sending() sent {
	t := a.now()
	return sent{t, t.token(), t.security.Get()}
}

// renew reads all files again now, and reports whether that changes what was sent. Of many requests that were refused,
// one reads what is new, and it is new for all.
func (a *access) renew(before sent) bool {
	if a.file != nil {
		_ = a.file.Look() // it is logged
	}
	t := a.now()
	if t.secret != nil {
		_ = t.secret.Look() // it is logged
	}
	_ = t.security.Look() // it is logged
	return a.sending() != before
}

func (a *access) close() {
	t := a.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.made != nil {
		t.made.CloseIdleConnections()
	}
}

func (t *target) token() string {
	if t.secret == nil {
		return ""
	}
	return t.secret.Get()
}

// transport returns what sends requests with these credentials. A connection that was made with earlier
// ones ends when nothing uses it.
func (t *target) transport(security *tls.Config) http.RoundTripper {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.made != nil && t.with == security {
		return t.made
	}
	if t.made != nil {
		t.made.CloseIdleConnections()
	}
	t.with = security
	t.made = &http.Transport{
		Proxy:                 t.proxy,
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 10 * time.Second}).DialContext,
		TLSClientConfig:       security.Clone(),
		TLSHandshakeTimeout:   handshakeTimeout,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		MaxIdleConnsPerHost:   inFlight,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: time.Second,
	}
	return t.made
}

// credentials are the parts of TLS and of the login, each as a file or as text.
type credentials struct {
	ca, cert, key, token text
	serverName           string
}

// text is the contents of a file, or a text of its own.
type text struct {
	file string
	data []byte
}

func (x text) set() bool { return x.file != "" || len(x.data) > 0 }

// or returns the file's contents, or the text if there is no file.
func (x text) or(contents []byte) []byte {
	if x.file != "" {
		return contents
	}
	return x.data
}

func (x text) name(what string) string {
	if x.file != "" {
		return x.file
	}
	return what
}

// use makes t use the credentials.
func (t *target) use(log *zap.Logger, c credentials) (err error) {
	if t.server.Scheme == "http" && (c.token.set() || c.cert.set()) {
		return fmt.Errorf("the API server's address is %s: credentials would go over the network in clear text; use https", t.server)
	}
	build := func(contents [][]byte) (*tls.Config, error) {
		config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.serverName}
		if c.ca.set() {
			roots, err := files.Authorities(c.ca.name("certificate-authority-data"), c.ca.or(contents[0]))
			if err != nil {
				return nil, err
			}
			config.RootCAs = roots
		}
		if c.cert.set() {
			pair, err := files.KeyPair(c.cert.name("client-certificate-data"), c.key.name("client-key-data"), c.cert.or(contents[1]), c.key.or(contents[2]))
			if err != nil {
				return nil, err
			}
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		return config, nil
	}
	if t.security, err = files.Watch(log, "TLS files of Kubernetes", build, c.ca.file, c.cert.file, c.key.file); err != nil {
		return err
	}
	if !c.token.set() {
		return nil
	}
	t.secret, err = files.Watch(log, "token of Kubernetes", func(contents [][]byte) (string, error) {
		token := strings.TrimSpace(string(c.token.or(contents[0])))
		if token == "" || strings.ContainsAny(token, " \n\r\t") {
			return "", fmt.Errorf("%s does not contain a token", c.token.name("token"))
		}
		return token, nil
	}, c.token.file)
	return err
}

// inPod returns the API server of the cluster in which this process runs in a pod. dir is
// serviceAccount, but in tests.
func inPod(log *zap.Logger, dir string, getenv func(string) string) (*access, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("election.kubernetes.kubeconfig is not set, and this is not a pod (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set): set kubeconfig to the path of a file")
	}
	t := &target{
		server: &url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)},
		login:  "Make sure that the pod's service account exists and that its token is mounted (automountServiceAccountToken); Fencepost reads it again by itself when it changes.",
		proxy:  http.ProxyFromEnvironment,
	}
	err := t.use(log, credentials{ca: text{file: filepath.Join(dir, "ca.crt")}, token: text{file: filepath.Join(dir, "token")}})
	if err != nil {
		return nil, fmt.Errorf("the service account of this pod (is automountServiceAccountToken false?): %w", err)
	}
	name, err := os.ReadFile(filepath.Join(dir, "namespace"))
	if err == nil {
		t.namespace = strings.TrimSpace(string(name))
	}
	return &access{pod: t}, nil
}
