// Package several tests sessions that choose resources by SET fencepost.resource, on real servers:
// what each transaction is checked for, what a client is told, and what is refused.
package several
