//go:build kubernetes

package system

import (
	"github.com/fencepost/fencepost/internal/kubernetestest"
)

func init() {
	allProviders = append(allProviders, "kubernetes")
	moreProviders["kubernetes"] = withKubernetes
	stopServers = append([]func(){kubernetestest.StopShared}, stopServers...)
}

// withKubernetes keeps the leases of a cluster in a real API server.
func withKubernetes(h *cluster) {
	h.t.Helper()
	server := kubernetestest.Shared(h.t)
	h.settings = append(h.settings, prefixed([]string{
		"ELECTION_PROVIDER=kubernetes", "ELECTION_KUBERNETES_PREFIX=" + h.prefix,
		"ELECTION_KUBERNETES_KUBECONFIG=" + server.Kubeconfig(h.t, server.Addr(), kubernetestest.Admin),
	})...)
}
