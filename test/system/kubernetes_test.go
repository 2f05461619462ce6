//go:build kubernetes

package system

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fencepost/fencepost/internal/kubernetestest"
)

func init() {
	allProviders = append(allProviders, "kubernetes")
	moreProviders["kubernetes"] = withKubernetes
	killedBounds["kubernetes"] = restartTTL + time.Second
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
	h.take = func() {
		h.t.Helper()
		const leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
		var all struct {
			Items []struct {
				Metadata struct{ Name string }
			}
		}
		text := server.Request(h.t, http.MethodGet, leases+"?labelSelector="+url.QueryEscape("fencepost/prefix="+h.prefix), "application/json", "")
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			h.t.Fatalf("decode the list of leases %s: %v", text, err)
		}
		for _, one := range all.Items {
			if !strings.HasSuffix(one.Metadata.Name, ".generation") {
				server.Request(h.t, http.MethodPatch, leases+"/"+one.Metadata.Name, "application/merge-patch+json", `{"spec":{"holderIdentity":null}}`)
			}
		}
	}
}
