package demo

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

// startKubernetes starts an API server, and the etcd in which it stores everything. There is
// nothing else of a cluster.
func startKubernetes(ctx context.Context, dir string, o Options) (*leaseService, error) {
	program, err := findProgram("kube-apiserver", "kubernetes", o.APIServer)
	if err != nil {
		return nil, err
	}
	etcd, err := startEtcd(ctx, dir, o)
	if err != nil {
		return nil, err
	}
	s, err := startAPIServer(ctx, dir, program, etcd)
	if err != nil {
		return nil, errors.Join(err, etcd.stop())
	}
	return s, nil
}

// startAPIServer starts the program. It makes a certificate for itself, which signs itself.
func startAPIServer(ctx context.Context, dir, program string, etcd *leaseService) (*leaseService, error) {
	address, err := scratch.FreeAddress()
	if err != nil {
		return nil, err
	}
	token, certs := rand.Text(), filepath.Join(dir, "kubernetes")
	in := func(name string) string { return filepath.Join(certs, name) }
	if err := writeFiles(certs, map[string][]byte{
		"tokens":     []byte(token + `,demo,demo,"system:masters"` + "\n"),
		"kubeconfig": []byte(fmt.Sprintf(kubeconfig, address, in("apiserver.crt"), token)),
	}); err != nil {
		return nil, err
	}
	if err := writeKey(in("accounts.key")); err != nil {
		return nil, err
	}
	cmd := exec.Command(program, "--etcd-servers=http://"+etcd.address, "--bind-address=127.0.0.1", "--secure-port="+scratch.Port(address),
		"--cert-dir="+certs, "--token-auth-file="+in("tokens"), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file="+in("accounts.key"), "--service-account-key-file="+in("accounts.key"),
		"--service-cluster-ip-range=10.0.0.0/24", "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none")
	s := &leaseService{
		what:    "a Kubernetes API server at " + address + ", which stores its objects in etcd",
		config:  fmt.Sprintf("  kubernetes:\n    kubeconfig: %s\n", in("kubeconfig")),
		address: address,
		beneath: etcd,
	}
	return s.start(ctx, dir, "kube-apiserver", cmd, func() error { return isReady(ctx, address, token, in("apiserver.crt")) })
}

// kubeconfig leads to an address, with the file of an authority and a token.
const kubeconfig = `apiVersion: v1
kind: Config
current-context: demo
contexts:
- name: demo
  context: {cluster: demo, user: demo, namespace: default}
clusters:
- name: demo
  cluster: {server: "https://%s", certificate-authority: %q}
users:
- name: demo
  user: {token: %s}
`

func writeFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create a directory for the lease service: %w", err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return fmt.Errorf("write a file of the lease service: %w", err)
		}
	}
	return nil
}

// writeKey writes the key with which the API server signs tokens of service accounts. The demo
// uses none, but there has to be one.
func writeKey(path string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("make a key for the API server: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("write a key of the API server: %w", err)
	}
	return nil
}

// isReady returns nil if the API server says that it can serve, and has its namespace.
func isReady(ctx context.Context, address, token, authority string) error {
	text, err := os.ReadFile(authority)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+path, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("the API server is not ready: %s: %s", path, resp.Status)
		}
	}
	return nil
}
