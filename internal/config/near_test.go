package config

import "testing"

func TestNear(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"billing", "billing", false},
		{"billing", "Billing", true},
		{"billing-run", "billing_run", true},
		{"billing.run", "billing run", true},
		{"team/billing", "team:billing", true},
		{"billingRun", "billing-run", true},
		{"invoice", "invoices", true},
		{"jobs-mail", "job-mail", true},
		{"billing", "biling", true},
		{"billing", "billling", true},
		{"billing", "bolling", true},
		{"billing-eu", "biling-eu", true},
		{"shard-7", "shard7", true},
		{"shard-7", "shards-7", true},
		{"shard-7", "sharp-7", false}, // the last letter of a word
		{"shard-7", "shrd-7", false},  // too short
		{"shard-7", "chard-7", true},
		{"shard-7", "shard-8", false},
		{"shard7", "shard8", false},
		{"shard-1-1", "shard-11", false},
		{"shard", "shard-2", false},
		{"billing", "billing2", false},
		{"billing-eu", "billing-us", false},
		{"billing-u", "billing-us", false},
		{"billing-a", "billing-b", false},
		{"sharda", "shardb", false},
		{"shardA", "shardB", false},
		{"phase-i", "phase-ii", false},
		{"queue-in", "queue-inn", false},
		{"jobs", "jods", false},
		{"job", "mob", false},
		{"billing", "shipping", false},
		{"billing", "billing-run", false},
		{"biling-jobs", "billing-job", false},
		{"b", "", false},
		{"größe", "grösse", false},
		{"門部", "間部", false}, // two characters, of which one byte differs
	} {
		if Near(c.a, c.b) != c.want || Near(c.b, c.a) != c.want {
			t.Errorf("%q and %q: near is %v and %v, want %v", c.a, c.b, Near(c.a, c.b), Near(c.b, c.a), c.want)
		}
	}
}
