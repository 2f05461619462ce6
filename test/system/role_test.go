package system

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture/process"
)

// choosing is a configuration with a resource for which nobody may campaign.
const choosing = "resources: {closed: {users: [nobody]}}\nlimits: {resources_per_connection: 3}\n"

// writeAs writes a row in a transaction that chooses resources, in one text.
func (c *client) writeAs(resources, what string) (state string) {
	c.t.Helper()
	err := c.exec("BEGIN; SET LOCAL fencepost.resource = '" + resources + "'; INSERT INTO work VALUES ('" + what + "'); COMMIT")
	if err != nil {
		c.must("ROLLBACK")
	}
	return stateOf(err)
}

// TestSafetyWorkersChooseShards: two workers at two proxies, with elections of their own. Who names a
// shard first leads it at once; the other one is told so, and leads it when the first has gone.
func TestSafetyWorkersChooseShards(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(choosing)
	q, _ := h.configured(choosing)
	a, b := h.join(p, "a", "resource", "of-a"), h.join(q, "b", "resource", "of-b")
	for _, w := range []struct {
		c                *client
		resources, state string
	}{
		{a, "shard-1", ""}, {b, "shard-1", "ZF002"}, {b, "shard-2", ""}, {b, "shard-1, shard-2", "ZF002"}, {a, "shard-2,shard-1", "ZF002"},
		{a, "shard-1, of-a", ""}, {b, "closed", "28000"}, {b, "shard-3", ""}, {b, "shard-4", "53400"}, {b, "shard-3, shard-2", ""},
	} {
		if got := w.c.writeAs(w.resources, w.resources+w.state); got != w.state {
			t.Errorf("%s: %q, want %q", w.resources, got, w.state)
		}
	}
	if n := ask[int](h, "SELECT count(*)::int FROM work WHERE what LIKE '%ZF%' OR what LIKE '%28000'"); n != 0 {
		t.Errorf("%d rows were written for a shard that its writer does not lead", n)
	}
	if epochs := ask[int](h, "SELECT count(*)::int FROM fencepost.fence WHERE resource LIKE 'shard-%' AND epoch = 1"); epochs != 3 {
		t.Errorf("%d shards have epoch 1, want 3", epochs)
	}
	a.leave()
	process.Eventually(t, process.Patience, "the other worker leads both shards", func() bool {
		state := b.writeAs("shard-1, shard-2", "both")
		if state != "" && state != "ZF002" && state != "ZF003" {
			t.Fatalf("a write of both shards: %s", state)
		}
		return state == ""
	})
	// A session that has chosen a shard stays with it, and its pool resets that.
	b.must("SET fencepost.resource = 'shard-1'", "INSERT INTO work VALUES ('chosen')")
	if role, epoch := b.show("role"), b.show("epoch"); role != "leader" || epoch != "2" {
		t.Errorf("the worker is %s with epoch %s, want leader and 2", role, epoch)
	}
	b.must("DISCARD ALL")
	if resource := b.show("resource"); resource != "of-b" {
		t.Errorf("after DISCARD ALL, the resource is %s, want of-b", resource)
	}
}
