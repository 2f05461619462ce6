// Package lockorder says in which order the locks of the proxy and of the elections are taken. Programs and tests that
// are built with -race hold each goroutine to it: they panic before a deadlock is possible, and not only when one
// happens.
package lockorder

// A goroutine that holds a lock takes only locks that come after it here. So it never takes two of one kind.
type (
	// Sending is session.sending of package proxy.
	Sending struct{}
	// Session is session.mu of package proxy. It is never held while blocking.
	Session struct{}
	// Workers is Workers.mu of package proxy/workers.
	Workers struct{}
	// Worker is worker.mu of package proxy/workers.
	Worker struct{}
	// Elections is Elections.mu of package election.
	Elections struct{}
	// Resource is resource.mu of package election, which guards the resource's candidacies too.
	Resource struct{}
	// Patience is Extensions.mu of package election/patience.
	Patience struct{}
)

// Place is the place of a lock in the order.
type Place interface {
	Sending | Session | Workers | Worker | Elections | Resource | Patience
}
