// Package kubernetes implements the lease service with the Leases of a Kubernetes API server, as
// a Service of package standstill.
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
// The version of a write is its resourceVersion. The number grows with each write of the whole cluster,
// whatever happens to the object, while leaseTransitions starts over with a new object. A restore of the
// cluster's data repeats resourceVersions and uids. The API has no transaction over two objects, so the
// marker is in an object of its own and is compared after the award.
//
// # Reads
//
// Decisions rest on reads of single objects, which the API server answers from a quorum of its
// etcd, and on its refusal to replace any other version. Lists and watches may come from its
// cache, which is wrong if the etcd beneath it was restored and the API server was not restarted.
// They only say when a read is due.
//
// # Client
//
// The requests are plain HTTP, because client-go is large for five kinds of request on one kind of object: a program
// that has its client of coordination.k8s.io/v1 alone is 20 MB larger than one with net/http and encoding/json (v0.37,
// without symbols), and links 270 more packages.
//
// # Permissions
//
// The proxies need get, list, watch, create and update on leases in one namespace.
package kubernetes
