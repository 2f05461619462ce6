// Package guard puts triggers on tables that let only those write who claim the current
// epoch of a resource, and says which tables have them. docs/guards.md describes what a
// guard does; its SQL is in migrations/guards.sql.
package guard
