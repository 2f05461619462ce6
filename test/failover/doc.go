// Package failover tests Fencepost with several upstream hosts: a real primary with a
// streaming standby, which is promoted when the primary has crashed, hangs, or is stopped.
package failover
