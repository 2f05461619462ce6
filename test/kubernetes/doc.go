// Package kubernetes tests the manifests for Kubernetes and the Helm chart in etc: that what
// they render fits together, that fencepost accepts the configuration in it, and that the
// manifests are what the chart renders.
//
// It is a module of its own, because it needs packages of Kubernetes that are no part of
// Fencepost. make helm runs its tests, and builds helm and fencepost for them.
package kubernetes
