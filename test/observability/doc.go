// Package observability tests the alert rules and the Grafana board in etc: that they name
// what a proxy exports. When each alert fires is in rules_test.yml, which promtool runs.
//
// It is a module of its own, because it needs packages of Prometheus that are no part of
// Fencepost. make observability runs its tests.
package observability
