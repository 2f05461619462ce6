package store

import "time"

// TrustedIdle is the idle time after which a pooled connection is pinged before use.
const TrustedIdle = trustedIdle

// Age makes the connection of a StateReader old.
func (r *StateReader) Age() { r.since = time.Time{} }

// Renewing reports whether another connection is being opened.
func (r *StateReader) Renewing() bool { return r.next != nil }

// Within dials connections that last as long as a tenure.
var Within = dialWithin

// Silent reports whether an error is of a server of which nothing was heard.
var Silent = isSilent
