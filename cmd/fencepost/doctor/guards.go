package doctor

import "strings"

var (
	guardBroken = newKind(Error, "guard-broken",
		"Whoever writes there past Fencepost is not fenced, and rows are not stamped.")
	guardOwner = newKind(Warning, "guard-owner",
		"The owner of a table can disable or drop its guard.")
	guardSubscription = newKind(Error, "guard-subscription",
		"The apply worker of a subscription claims no epoch, so that its first change of the table is refused, and replication stops.")
)

// guards looks at the guarded tables.
func (f *findings) guards(d Database) {
	for _, g := range d.Guards {
		if len(g.Broken) > 0 {
			f.addf(guardBroken, "Run the command fencepost guard add again that guarded the table: it makes what is missing. Do so after each new partition, too.",
				"resource %s guards table %s, but a trigger is missing or disabled on %s", g.Resource, g.Table, strings.Join(g.Broken, ", "))
		}
		if len(g.Owners) > 0 {
			f.addf(guardOwner, "Let the table belong to a role that nobody logs in as, and grant the workers what they need.",
				"%s may act as the owner of table %s, which resource %s guards", strings.Join(g.Owners, ", "), g.Table, g.Resource)
		}
		if len(g.Subscriptions) > 0 {
			f.addf(guardSubscription, "Drop the subscription, or remove the guard of the table.",
				"subscription %s writes table %s, which resource %s guards", strings.Join(g.Subscriptions, ", "), g.Table, g.Resource)
		}
	}
}
