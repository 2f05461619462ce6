package kubernetes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
)

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What a kubeconfig asks for and Fencepost does not do is an error that says what to do instead.
func TestKubeconfigs(t *testing.T) {
	t.Parallel()
	const whole = `
current-context: one
contexts:
- {name: one, context: {cluster: c, user: u, namespace: apps}}
- {name: two, context: {cluster: c}}
- {name: nobody, context: {cluster: c, user: missing}}
- {name: nowhere, context: {cluster: missing, user: u}}
clusters: [{name: c, cluster: {CLUSTER}}]
users: [{name: u, user: {USER}}]
`
	for what, c := range map[string]struct {
		cluster, user, context, want string // in the error; "" if there is none
	}{
		"a token":                {"server: 'https://k:6443'", "token: x", "", ""},
		"a named context":        {"server: 'https://k:6443/path/'", "exec: {command: x}", "two", ""},
		"http without login":     {"server: 'http://127.0.0.1:8001'", "", "", ""},
		"http with a token":      {"server: 'http://127.0.0.1:8001'", "token: x", "", "clear text"},
		"no such context":        {"server: 'https://k'", "", "three", `no context "three"`},
		"no such user":           {"server: 'https://k'", "", "nobody", `the user "missing"`},
		"no such cluster":        {"server: 'https://k'", "", "nowhere", `the cluster "missing"`},
		"no address":             {"", "", "", "use a URL"},
		"an address":             {"server: 'k:6443'", "", "", "use a URL"},
		"no verification":        {"server: 'https://k', insecure-skip-tls-verify: true", "", "", "anybody on the network could answer as the API server"},
		"an exec plugin":         {"server: 'https://k'", "exec: {command: aws}", "", "runs no other programs: use a service account"},
		"an auth-provider":       {"server: 'https://k'", "auth-provider: {name: gcp}", "", "auth-provider"},
		"a password":             {"server: 'https://k'", "username: a, password: b", "", "no longer accepts"},
		"another user":           {"server: 'https://k'", "as: admin", "", "does not do"},
		"a certificate only":     {"server: 'https://k'", "client-certificate: a", "", "belong together"},
		"what is not base64":     {"server: 'https://k', certificate-authority-data: '?'", "", "", "certificate-authority-data is not base64"},
		"what is no PEM":         {"server: 'https://k', certificate-authority-data: YQ==", "", "", "holds no certificate"},
		"a file that is missing": {"server: 'https://k'", "tokenFile: nowhere", "", "nowhere"},
		"a bad proxy":            {"server: 'https://k', proxy-url: x", "", "", "is not a URL"},
		"two words as a token":   {"server: 'https://k'", "token: 'a b'", "", "does not contain a token"},
	} {
		f := &fake{t: t}
		path := filepath.Join(t.TempDir(), "kubeconfig")
		f.file(path, strings.NewReplacer("{CLUSTER}", "{"+c.cluster+"}", "{USER}", "{"+c.user+"}").Replace(whole))
		s, err := open(Config{Kubeconfig: path, Context: c.context})
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", what, err, c.want)
		case err == nil && (c.context == "" && s.api.namespace != "apps" || c.context != "" && s.api.namespace != "default"):
			t.Errorf("%s: the namespace is %s", what, s.api.namespace)
		}
	}
}

// A kubeconfig that changes is read again, and another server is used then.
func TestAKubeconfigIsReadAgain(t *testing.T) {
	t.Parallel()
	one, two := newFake(t), newFake(t)
	path := one.kubeconfig("token: secret")
	s := one.serviceOf(path)
	if err := s.Mark(t.Context(), "one", false); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(strings.ReplaceAll(readFile(t, path), one.URL, two.URL), one.ca, two.ca)
	one.file(path, text)
	s.api.config.file.Look()
	if _, marker, err := s.Get(t.Context(), key); err != nil || marker != "" {
		t.Errorf("the other server has the marker %q: %v", marker, err)
	}
	one.file(path, "{")
	s.api.config.file.Look()
	if _, _, err := s.Get(t.Context(), key); err != nil {
		t.Errorf("after a file that cannot be used: %v", err)
	}
}

func TestInAPod(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	dir := t.TempDir()
	env := map[string]string{}
	getenv := func(name string) string { return env[name] }
	if _, err := inPod(zap.NewNop(), dir, getenv); err == nil || !strings.Contains(err.Error(), "this is not a pod") {
		t.Errorf("outside of a pod: %v", err)
	}
	host, port, _ := strings.Cut(strings.TrimPrefix(f.URL, "https://"), ":")
	env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"] = host, port
	if _, err := inPod(zap.NewNop(), dir, getenv); err == nil || !strings.Contains(err.Error(), "automountServiceAccountToken") {
		t.Errorf("without a service account: %v", err)
	}
	f.file(filepath.Join(dir, "token"), "secret")
	f.file(filepath.Join(dir, "ca.crt"), readFile(t, f.ca))
	f.file(filepath.Join(dir, "namespace"), "apps\n")
	a, err := inPod(zap.NewNop(), dir, getenv)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{api: newAPI(a, a.now().namespace), prefix: "fencepost"}
	if err := s.Mark(t.Context(), "marker", false); err != nil {
		t.Error(err)
	}
}
