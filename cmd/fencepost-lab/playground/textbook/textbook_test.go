package textbook

import (
	"slices"
	"testing"
	"time"
)

var algorithms = map[string]Algorithm{"bully": Bully, "ring": Ring}

// heal lets all nodes reach each other.
func heal(c *Cluster) {
	for _, n := range c.nodes {
		n.side = 0
	}
}

// leaders returns the nodes that believe that they lead.
func leaders(c *Cluster) []int {
	var ids []int
	for _, v := range c.Views() {
		if v.Leads() {
			ids = append(ids, v.ID)
		}
	}
	return ids
}

// settle lets enough time pass for two elections, and fails the test unless these nodes believe that
// they lead, and everybody who is alive and not frozen follows a leader of its own side.
func settle(t *testing.T, c *Cluster, what string, want ...int) {
	t.Helper()
	c.Advance(8 * time.Second)
	if got := leaders(c); !slices.Equal(got, want) {
		t.Errorf("%s: %v lead, want %v: %+v", what, got, want, c.Views())
	}
	for _, v := range c.Views() {
		if v.Alive && !v.Frozen && (v.Leader == 0 || c.Views()[v.Leader-1].Side != v.Side) {
			t.Errorf("%s: node %d follows %d: %+v", what, v.ID, v.Leader, c.Views())
		}
	}
}

func each(t *testing.T, f func(t *testing.T, c *Cluster)) {
	t.Parallel()
	for name, a := range algorithms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, New(a, 5))
		})
	}
}

func TestTheHighestNumberLeads(t *testing.T) {
	each(t, func(t *testing.T, c *Cluster) {
		settle(t, c, "all", 5)
		c.Kill(5)
		settle(t, c, "5 was killed", 4)
		c.Kill(2)
		c.Kill(4)
		settle(t, c, "2 and 4 were killed", 3)
		c.Start(4)
		c.Advance(8 * time.Second)
		if got := leaders(c); len(got) != 1 {
			t.Errorf("4 has started again: %v lead", got)
		}
	})
}

// TestEachPartElectsALeader is what the algorithms are shown for.
func TestEachPartElectsALeader(t *testing.T) {
	each(t, func(t *testing.T, c *Cluster) {
		settle(t, c, "all", 5)
		for _, id := range []int{1, 2, 3} {
			c.Move(id, 1)
		}
		settle(t, c, "partitioned", 3, 5)
		c.Move(2, 2)
		settle(t, c, "three parts", 2, 3, 5)
		heal(c)
		settle(t, c, "healed", 5)
	})
}

// TestAFrozenLeaderStillBelieves: when it is thawed there are two, until they hear of each other.
func TestAFrozenLeaderStillBelieves(t *testing.T) {
	each(t, func(t *testing.T, c *Cluster) {
		settle(t, c, "all", 5)
		c.Freeze(5)
		settle(t, c, "frozen", 4, 5)
		c.Thaw(5)
		c.Advance(Tick)
		if got := leaders(c); !slices.Contains(got, 4) {
			t.Errorf("4 has stopped before it could hear of 5: %v lead", got)
		}
		settle(t, c, "thawed", 5)
	})
}

// TestFaultsAtRandomEndWithOneLeader moves, freezes, kills and starts nodes, and lets the network heal.
func TestFaultsAtRandomEndWithOneLeader(t *testing.T) {
	each(t, func(t *testing.T, c *Cluster) {
		for i := range 400 {
			id := 1 + (i*7+i/3)%5
			switch i % 6 {
			case 0:
				c.Kill(id)
			case 1:
				c.Freeze(id)
			case 2, 3:
				c.Move(id, i%3)
			case 4:
				c.Thaw(id)
			default:
				c.Start(id)
			}
			c.Advance(time.Duration(1+i%17) * Tick)
		}
		for id := 1; id <= 5; id++ {
			c.Thaw(id)
			c.Start(id)
		}
		heal(c)
		c.Advance(10 * time.Second)
		if got := leaders(c); len(got) != 1 {
			t.Errorf("%v lead: %+v", got, c.Views())
		}
	})
}
