package kubernetes

import (
	"cmp"
	"fmt"
	"os"
	"regexp"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/standstill"
)

// Source is the name under which the provider's awards are recorded.
const Source = "kubernetes"

// Config is the configuration of a connection to a Kubernetes API server.
type Config struct {
	// Kubeconfig is the path of a file that names the API server and the credentials. "" means the
	// service account of the pod in which this process runs. All files are read again when they
	// change; while they cannot be used, the earlier ones hold.
	Kubeconfig string
	Context    string // of the kubeconfig; "" is its current context
	// Namespace has the leases; "" means that of the context or of the pod, or else "default".
	Namespace string
	Prefix    string // of all names; default kv.DefaultPrefix
	Proxy     string // this proxy's name, for people who read a record
	Logger    *zap.Logger
}

// New returns a client that watches the prefix until Close. It does not wait until the API server
// is reachable.
func New(cfg Config) (*kv.Client, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubernetes elector: %w", err)
	}
	c, err := kv.New(kv.Config{Store: standstill.New(s, cfg.Proxy, 0), Source: Source, Service: s.api.name, Proxy: cfg.Proxy, Logger: cfg.Logger})
	if err != nil {
		return nil, fmt.Errorf("kubernetes elector: %w", err)
	}
	return c, nil
}

var namespaces = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckNamespace returns an error unless the text can be the name of a namespace.
func CheckNamespace(name string) error {
	if !namespaces.MatchString(name) {
		return fmt.Errorf("%q is not the name of a namespace", name)
	}
	return nil
}

// open returns a service that connects when it is used.
func open(cfg Config) (*service, error) {
	cfg.Prefix, cfg.Logger = cmp.Or(cfg.Prefix, kv.DefaultPrefix), cmp.Or(cfg.Logger, zap.NewNop())
	if err := CheckPrefix(cfg.Prefix); err != nil {
		return nil, err
	}
	var a *access
	var err error
	if cfg.Kubeconfig != "" {
		a, err = byFile(cfg.Logger, cfg.Kubeconfig, cfg.Context)
	} else {
		a, err = inPod(cfg.Logger, serviceAccount, os.Getenv)
	}
	if err != nil {
		return nil, err
	}
	namespace := cmp.Or(cfg.Namespace, a.now().namespace, "default")
	if err := CheckNamespace(namespace); err != nil {
		return nil, err
	}
	return &service{api: newAPI(a, namespace), prefix: cfg.Prefix}, nil
}
