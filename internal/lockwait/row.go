package lockwait

// HasLocked returns the SQL condition that the transaction of the number xid has locked the row whose xmax is given. An
// xmax is the number of a transaction, or of a set of them. Nothing says which, and only a number of an existing set
// may be looked up.
func HasLocked(xid, xmax string) string {
	return `(` + xid + ` = ` + xmax + ` OR ` + xid + ` IN (SELECT m.xid FROM pg_catalog.pg_get_multixact_members(CASE
		WHEN pg_catalog.mxid_age(` + xmax + `) BETWEEN 1 AND (SELECT max(pg_catalog.mxid_age(d.datminmxid)) FROM pg_catalog.pg_database d)
		THEN ` + xmax + ` END) m))`
}
