package electors

import (
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kubernetes"
	"github.com/fencepost/fencepost/internal/config"
)

// kubernetesElector keeps the leases of all databases in one namespace of a Kubernetes cluster.
var kubernetesElector = Elector{
	Provider: config.Provider{
		Name:     "kubernetes",
		Validate: func(c *config.Config, fault config.Fault) { c.Election.Kubernetes.Validate(fault) },
	},
	Open: openKubernetes,
}

// openKubernetes prepares the connection to the API server under the name of a proxy, and starts to
// watch it.
func openKubernetes(cfg config.Config, proxy string, log *zap.Logger) (Service, error) {
	c := cfg.Election.Kubernetes
	client, err := kubernetes.New(kubernetes.Config{
		Kubeconfig: c.Kubeconfig, Context: c.Context, Namespace: c.Namespace, Prefix: c.Prefix, Proxy: proxy, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return network{
		client:   client,
		database: func(name string) elector.Provider { return client.Database(name) },
		name:     "kubernetes", title: "the Kubernetes API server", setting: "election.kubernetes.kubeconfig", prefix: c.Prefix,
	}, nil
}
