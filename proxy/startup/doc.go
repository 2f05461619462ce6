// Package startup reads what a client sends before its session begins: its requests for encryption, and
// its startup packet with the fencepost.* parameters, or its request to cancel a statement.
package startup
