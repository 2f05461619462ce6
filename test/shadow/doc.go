// Package shadow contains no code, only tests of resources in shadow: what is recorded of their
// sessions, and that nothing happens to these.
package shadow
