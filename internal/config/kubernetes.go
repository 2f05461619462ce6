package config

import "regexp"

// Kubernetes configures the provider "kubernetes".
type Kubernetes struct {
	Kubeconfig string `yaml:"kubeconfig"` // "" in a pod: its service account
	Context    string `yaml:"context"`    // of the kubeconfig
	Namespace  string `yaml:"namespace"`
	Prefix     string `yaml:"prefix"`
}

var defaultKubernetes = Kubernetes{Prefix: "fencepost"}

// The names are a part of the names of objects, and the prefix is the value of a label too.
var (
	kubernetesPrefix    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)
	kubernetesNamespace = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// Validate checks the settings of the provider "kubernetes".
func (c *Kubernetes) Validate(fault Fault) {
	if !kubernetesPrefix.MatchString(c.Prefix) {
		fault("election.kubernetes.prefix is %q: use 1 to 40 lower-case letters, digits and hyphens, beginning and ending with a letter or digit, e.g. fencepost", c.Prefix)
	}
	if c.Namespace != "" && !kubernetesNamespace.MatchString(c.Namespace) {
		fault("election.kubernetes.namespace is %q: use the name of a namespace, e.g. fencepost", c.Namespace)
	}
	if c.Context != "" && c.Kubeconfig == "" {
		fault("election.kubernetes.context is set, but no kubeconfig: set kubeconfig to the path of the file that has this context, or remove it")
	}
}
