package redis

import (
	"context"
	"fmt"

	"github.com/fencepost/fencepost/election/elector"
)

// infoScript answers what Redis says about how it keeps its data.
const infoScript = common + `
return {about, redis.call('info', 'persistence')}
`

// Risks returns what can cost leaders their leases although Redis works.
func (c *Client) Risks(ctx context.Context) ([]elector.Risk, error) {
	answer, err := c.store.run(ctx, "read INFO", infoScript)
	if err != nil {
		return nil, err
	}
	return risks(parse(answer[0]), parse(answer[1])), nil
}

// risks evaluates the sections replication and persistence of INFO.
func risks(replication, persistence map[string]string) (found []elector.Risk) {
	if persistence["aof_enabled"] == "0" {
		found = append(found, elector.Risk{
			Kind:   elector.RiskNotSaved,
			Seen:   "Redis has no append-only file (appendonly no)",
			Remedy: "Set appendonly yes.",
		})
	}
	// The number of good replicas is shown only if min-replicas-to-write is set.
	if n := replication["connected_slaves"]; n != "" && n != "0" && replication["min_slaves_good_slaves"] == "" {
		found = append(found, elector.Risk{
			Kind:   elector.RiskNotReplicated,
			Seen:   fmt.Sprintf("Redis has replicas (%s), and min-replicas-to-write is 0", n),
			Remedy: "Set min-replicas-to-write 1 and min-replicas-max-lag, so that a master that is cut off from its replicas awards no leases for long.",
		})
	}
	return found
}
