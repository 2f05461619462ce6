package table

import (
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/proxy"
)

// ClientHeads are the names of the columns of Client.
const ClientHeads = "DATABASE\tUSER\tCLIENT\tAPPLICATION\tRESOURCE\tWORKER\tROLE\tFENCE\tSTATE\tSTART\tRECEIVED\tSENT\tTRANSACTIONS"

// Client is the row of a client. The clocks of this host and of the proxy's may differ.
func Client(c proxy.Connection, now time.Time) []string {
	resources := c.Chosen
	if c.Resource != "" {
		resources = append([]string{c.Resource}, c.Chosen...)
	}
	count := func(n uint64) string { return strconv.FormatUint(n, 10) }
	return []string{
		c.Database, c.User, c.Client, c.ApplicationName, strings.Join(resources, ", "), c.Worker, c.Role, c.Fence,
		c.State + " for " + max(0, now.Sub(c.Since)).Truncate(time.Second).String(), Since(c.Start),
		count(c.Received), count(c.Sent), count(c.Transactions),
	}
}
