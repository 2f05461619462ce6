// Package handover keeps, in one database, who campaigns through a proxy, and reads what operators
// have ordered to be handed over. See migrations/handover.sql.
//
// Who campaigns is written as changes, in one statement for all resources of a database and at most
// as often as Record is called. Every few seconds a statement that changes one row says that the proxy
// is still alive. Nothing waits for a disk.
package handover
