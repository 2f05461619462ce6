// Package boottime reads the clock by which leases are trusted.
package boottime
