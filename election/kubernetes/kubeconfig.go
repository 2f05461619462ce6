package kubernetes

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"

	"github.com/fencepost/fencepost/internal/files"
)

// kubeconfig is what Fencepost reads of such a file.
type kubeconfig struct {
	CurrentContext string `yaml:"current-context"`
	Clusters       []struct {
		Name    string  `yaml:"name"`
		Cluster cluster `yaml:"cluster"`
	} `yaml:"clusters"`
	Contexts []struct {
		Name    string      `yaml:"name"`
		Context contextPart `yaml:"context"`
	} `yaml:"contexts"`
	Users []struct {
		Name string `yaml:"name"`
		User user   `yaml:"user"`
	} `yaml:"users"`
}

type contextPart struct {
	Cluster   string `yaml:"cluster"`
	User      string `yaml:"user"`
	Namespace string `yaml:"namespace"`
}

type cluster struct {
	Server     string `yaml:"server"`
	CAFile     string `yaml:"certificate-authority"`
	CAData     string `yaml:"certificate-authority-data"`
	ServerName string `yaml:"tls-server-name"`
	ProxyURL   string `yaml:"proxy-url"`
	Insecure   bool   `yaml:"insecure-skip-tls-verify"`
}

type user struct {
	Token     string `yaml:"token"`
	TokenFile string `yaml:"tokenFile"`
	CertFile  string `yaml:"client-certificate"`
	CertData  string `yaml:"client-certificate-data"`
	KeyFile   string `yaml:"client-key"`
	KeyData   string `yaml:"client-key-data"`
	// What Fencepost does not use, and does not leave out in silence either.
	Exec         any    `yaml:"exec"`
	AuthProvider any    `yaml:"auth-provider"`
	Username     string `yaml:"username"`
	As           string `yaml:"as"`
}

// byFile returns the API server of a context of a kubeconfig; "" is its current one.
func byFile(log *zap.Logger, path, context string) (*access, error) {
	build := func(contents [][]byte) (*target, error) {
		t, err := targetOf(log, contents[0], path, context)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return t, nil
	}
	file, err := files.Watch(log, "kubeconfig", build, path)
	if err != nil {
		return nil, err
	}
	return &access{file: file}, nil
}

// targetOf returns what a context of a kubeconfig names.
func targetOf(log *zap.Logger, contents []byte, path, context string) (*target, error) {
	var k kubeconfig
	if err := yaml.Unmarshal(contents, &k); err != nil {
		return nil, fmt.Errorf("not a kubeconfig: %w", err)
	}
	c, u, namespace, err := k.pick(context)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(c.Server)
	if err != nil || server.Host == "" || server.Scheme != "https" && server.Scheme != "http" {
		return nil, fmt.Errorf("the cluster's server is %q: use a URL such as https://kubernetes.example.com:6443", c.Server)
	}
	server.Path = strings.TrimSuffix(server.Path, "/")
	t := &target{server: server, namespace: namespace, proxy: http.ProxyFromEnvironment,
		login: "Renew them in " + path + ", or the files that it names; Fencepost reads them again by itself."}
	if c.ProxyURL != "" {
		proxy, err := url.Parse(c.ProxyURL)
		if err != nil || proxy.Host == "" {
			return nil, fmt.Errorf("the cluster's proxy-url %q is not a URL", c.ProxyURL)
		}
		t.proxy = http.ProxyURL(proxy)
	}
	parts, err := partsOf(c, u, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return t, t.use(log, parts)
}

// pick returns the cluster, the user and the namespace of a context, and refuses what Fencepost
// cannot or will not use.
func (k *kubeconfig) pick(context string) (c cluster, u user, namespace string, err error) {
	if context == "" {
		context = k.CurrentContext
	}
	if context == "" {
		return c, u, "", errors.New("it has no current-context: set election.kubernetes.context to the name of a context")
	}
	var found *contextPart
	for i := range k.Contexts {
		if k.Contexts[i].Name == context {
			found = &k.Contexts[i].Context
		}
	}
	if found == nil {
		return c, u, "", fmt.Errorf("it has no context %q", context)
	}
	known := false
	for _, one := range k.Clusters {
		if one.Name == found.Cluster {
			c, known = one.Cluster, true
		}
	}
	if !known {
		return c, u, "", fmt.Errorf("the context %q names the cluster %q, which is not there", context, found.Cluster)
	}
	known = found.User == ""
	for _, one := range k.Users {
		if one.Name == found.User {
			u, known = one.User, true
		}
	}
	if !known {
		return c, u, "", fmt.Errorf("the context %q names the user %q, who is not there", context, found.User)
	}
	return c, u, found.Namespace, refuse(found.User, u, c)
}

// refuse returns an error if a kubeconfig asks for something that Fencepost does not do.
func refuse(name string, u user, c cluster) error {
	const advice = "use a service account with a token (tokenFile), or a client certificate"
	switch {
	case c.Insecure:
		return errors.New("the cluster has insecure-skip-tls-verify: then anybody on the network could answer as the API server and award leases; " +
			"remove it, and set certificate-authority or certificate-authority-data")
	case u.Exec != nil:
		return fmt.Errorf("the user %q logs in with an exec plugin, and Fencepost runs no other programs: %s", name, advice)
	case u.AuthProvider != nil:
		return fmt.Errorf("the user %q logs in with an auth-provider, which Kubernetes no longer has: %s", name, advice)
	case u.Username != "":
		return fmt.Errorf("the user %q logs in with a username, which Kubernetes no longer accepts: %s", name, advice)
	case u.As != "":
		return fmt.Errorf("the user %q acts as another user (as: %s), which Fencepost does not do: %s", name, u.As, advice)
	}
	return nil
}

// partsOf returns the credentials. Files are relative to dir.
func partsOf(c cluster, u user, dir string) (parts credentials, err error) {
	parts.serverName = c.ServerName
	for _, one := range []struct {
		what       string
		file, data string
		to         *text
	}{
		{"certificate-authority", c.CAFile, c.CAData, &parts.ca},
		{"client-certificate", u.CertFile, u.CertData, &parts.cert},
		{"client-key", u.KeyFile, u.KeyData, &parts.key},
	} {
		if one.data != "" { // which goes first with kubectl too
			if one.to.data, err = base64.StdEncoding.DecodeString(one.data); err != nil {
				return parts, fmt.Errorf("%s-data is not base64: %w", one.what, err)
			}
			continue
		}
		one.to.file = below(dir, one.file)
	}
	if parts.cert.set() != parts.key.set() {
		return parts, errors.New("client-certificate and client-key belong together: set both or neither")
	}
	parts.token = text{file: below(dir, u.TokenFile)}
	if u.TokenFile == "" {
		parts.token.data = []byte(u.Token)
	}
	return parts, nil
}

func below(dir, file string) string {
	if file == "" || filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(dir, file)
}
