// Package kubernetes implements the lease service with the Leases of a Kubernetes API server, as
// a Store of package kv.
//
// # Objects
//
//	Lease <prefix>.generation                      the marker, in an annotation
//	Lease <prefix>.<database>-<resource>.<hash>    one lease, in one namespace
//
// The annotations of a lease hold its record. spec.holderIdentity is the life that holds it. All
// objects of a prefix have the label fencepost/prefix, by which they are listed and watched. They
// stay for ever, and every write names the resourceVersion and the uid of what it replaces, so
// that a late one is refused.
//
// # Order of awards
//
// The index of an award is the resourceVersion of the write that made it. The number grows with
// each write of the whole cluster, whatever happens to the object, while leaseTransitions begins
// anew with a new object. A restore of the cluster's data repeats resourceVersions and uids. The
// API has no transaction over two objects: the marker is read before and after the award, which
// counts only if both agree. A renewal changes the object too, so it writes the resourceVersion of
// the award into an annotation.
//
// # Time
//
// The API server ends no lease, and the times in an object are of somebody else's clock. A lease
// is free when its object has not changed for its TTL by the clock (CLOCK_BOOTTIME) of the proxy
// that looks, since that proxy first saw this version of it. A proxy that has just started
// therefore waits for a whole TTL. So does one that has not reached the API server for a while:
// nobody could renew anything meanwhile, and the holders come first.
//
// # Reads
//
// Decisions rest on reads of single objects, which the API server answers from a quorum of its
// etcd, and on its refusal to replace any other version. Lists and watches may come from its
// cache, which is wrong if the etcd beneath it was restored and the API server was not restarted.
// They only say when a read is due.
//
// # Permissions
//
// The proxies need get, list, watch, create and update on leases in one namespace.
package kubernetes
