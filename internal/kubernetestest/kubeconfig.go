package kubernetestest

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Kubeconfig writes a file for a user with this token, who finds the server at an address, such as
// that of a link to it.
func (s *Server) Kubeconfig(t testing.TB, addr, token string) (path string) {
	t.Helper()
	return s.config(t, addr, "token: "+token)
}

// KubeconfigFiles is like Kubeconfig. The token is in a file.
func (s *Server) KubeconfigFiles(t testing.TB, addr, tokenFile string) (path string) {
	t.Helper()
	return s.config(t, addr, "tokenFile: "+tokenFile)
}

// KubeconfigCert is like Kubeconfig. The user has a certificate.
func (s *Server) KubeconfigCert(t testing.TB, addr, user, group string) (path string) {
	t.Helper()
	cert, key, err := s.keys.issue(user, group)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.StdEncoding.EncodeToString
	return s.config(t, addr, fmt.Sprintf("client-certificate-data: %s\n    client-key-data: %s", encode(cert), encode(key)))
}

func (s *Server) config(t testing.TB, addr, user string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts:
- name: test
  context: {cluster: test, user: test}
clusters:
- name: test
  cluster:
    server: https://%s
    certificate-authority: %s
users:
- name: test
  user:
    %s
`, addr, s.keys.caFile, user)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
