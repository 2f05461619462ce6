package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing/evidence"
)

// stampsTimeout bounds the look at the stamps of one table, of which every row is read.
const stampsTimeout = 3 * time.Second

var (
	guardBroken = newKind(Error, "guard-broken",
		"Whoever writes there past Fencepost is not fenced, and rows are not stamped.")
	guardLost = newKind(Error, "guard-lost",
		"Whoever writes there past Fencepost is not fenced, and rows are not stamped. The table was dropped or created again, or its triggers were, or fencepost guard add was ended half way.")
	guardOrder = newKind(Warning, "guard-order",
		"Postgres fires triggers in the order of their names. What such a trigger sets, the stamp then is.")
	guardNotAlways = newKind(Warning, "guard-not-always",
		"Whoever may set session_replication_role writes there without being fenced, and so does the apply worker of a subscription.")
	guardOwner = newKind(Warning, "guard-owner",
		"The owner of a table can disable or drop its guard.")
	guardSuperuser = newKind(Warning, "guard-superuser",
		"A superuser can disable or drop every guard. Without that, the guards refuse it like everybody else.")
	guardSubscription = newKind(Error, "guard-subscription",
		"The apply worker of a subscription is not registered, so that its first change of the table is refused, and replication stops.")
	stampAbove = newKind(Error, "stamp-above-fence",
		"The fence has not granted that epoch: the rows come from another database, or the fence was restored or created again. When it grants the epoch, nothing distinguishes those rows from the new leader's.")
)

// stamps reads the highest stamp above the fence of each guarded table. What it cannot
// read is in the notes.
func (f *Facts) stamps(ctx context.Context, conn *pgx.Conn, guards []Guard) {
	for i := range guards {
		g := &guards[i]
		if g.Stamp == "" {
			continue
		}
		err := readStamps(ctx, conn, g)
		var pg *pgconn.PgError
		var harmful *evidence.HarmfulError
		switch {
		case err == nil:
		case errors.As(err, &harmful):
			f.Notes = append(f.Notes, fmt.Sprintf("The stamps were not looked at: %v.", err))
		case errors.As(err, &pg) && pg.Code == "42501":
			f.Notes = append(f.Notes, fmt.Sprintf("The stamps of table %s were not looked at, because role %s may not read it, or not all of it. Give --dsn with a superuser.", g.Table, conn.Config().User))
		case errors.As(err, &pg) && pg.Code == "57014":
			f.Notes = append(f.Notes, fmt.Sprintf("The stamps of table %s were not looked at, because reading them took longer than %s.", g.Table, stampsTimeout))
		case errors.As(err, &pg) && slices.Contains([]string{"42883", "42704", "42P01", "3F000"}, pg.Code): // no such function, type, table, schema
			f.Notes = append(f.Notes, fmt.Sprintf("The stamps of table %s were not looked at, because a function in SQL, which an index calls, finds others by search_path: %s.", g.Table, pg.Message))
		default:
			f.Failures = append(f.Failures, fmt.Sprintf("look at the stamps of table %s: %v", g.Table, err))
		}
	}
}

func readStamps(ctx context.Context, conn *pgx.Conn, g *Guard) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", stampsTimeout.Milliseconds())); err != nil {
		return err
	}
	if err := evidence.LockHarmless(ctx, tx, g.Table, g.Stamp, false); err != nil {
		return err
	}
	column := pgx.Identifier{g.Stamp}.Sanitize()
	// The stamps come first: another worker may lead, and write, between the two statements. A column is qualified, and
	// the table has nothing next to it, because the table's owner chooses the names.
	var highest int64
	if err := tx.QueryRow(ctx, fmt.Sprintf("SELECT coalesce(max(t.%s), 0) FROM %s t", column, g.Table)).Scan(&highest); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, "SELECT f.epoch FROM fencepost.fence f WHERE f.resource = $1", g.Resource).Scan(&g.Epoch); err != nil {
		return err
	}
	if highest > g.Epoch {
		g.Above = highest
	}
	return nil
}

// guards looks at the guarded tables.
func (f *findings) guards(d Database) {
	for _, l := range d.Lost {
		f.addf(guardLost, "Run the command fencepost guard add again that guarded the table, or fencepost guard remove --table "+l.Table+" --dsn DSN",
			"table %s is recorded as guarded by resource %s, and has no guard", l.Table, l.Resource)
	}
	for _, g := range d.Guards {
		if len(g.LaterTriggers) > 0 {
			f.addf(guardOrder, "Rename the triggers (ALTER TRIGGER ... RENAME TO), so that their names sort before ~fencepost.",
				"triggers fire after the guard of table %s by resource %s, and could change its stamps: %s", g.Table, g.Resource, strings.Join(g.LaterTriggers, ", "))
		}
		if len(g.Broken) > 0 {
			f.addf(guardBroken, "Run the command fencepost guard add again that guarded the table: it makes what is missing. Do so after each new partition, too. A partition that was detached is a table of its own: guard that, or run fencepost guard remove --table TABLE --dsn DSN for it.",
				"resource %s guards table %s, but a trigger is missing or disabled on %s", g.Resource, g.Table, strings.Join(g.Broken, ", "))
		}
		if len(g.NotAlways) > 0 {
			f.addf(guardNotAlways, "Run the command fencepost guard add again that guarded the table.",
				"with session_replication_role = replica, which %s may set, the guard of resource %s does not fire on %s",
				strings.Join(append([]string{"superusers"}, g.Setters...), ", "), g.Resource, strings.Join(g.NotAlways, ", "))
		}
		if len(g.Owners) > 0 {
			f.addf(guardOwner, "Let the table belong to a role that nobody logs in as, and grant the workers what they need.",
				"%s may act as the owner of table %s, or of a partition or child of it, which resource %s guards", strings.Join(g.Owners, ", "), g.Table, g.Resource)
		}
		if g.Above > 0 {
			f.addf(stampAbove, fmt.Sprintf("Find out where the rows come from. To let the epochs go on above them: fencepost generation bump --database %s --above %d.", d.Name, g.Above),
				"table %s has the stamp %d, but resource %s, which guards it, is at epoch %d", g.Table, g.Above, g.Resource, g.Epoch)
		}
		if len(g.Subscriptions) > 0 {
			f.addf(guardSubscription, "Drop the subscription, or remove the guard of the table.",
				"subscription %s writes table %s, which resource %s guards", strings.Join(g.Subscriptions, ", "), g.Table, g.Resource)
		}
	}
}

// mighty looks at the roles that can go around all guards of a database. The superuser that
// initdb has made is always one of them, and not named. The finding write-all-data names members of
// pg_write_all_data.
func (f *findings) mighty(d Database) {
	if len(d.Guards) == 0 {
		return
	}
	var tables, supers []string
	for _, g := range d.Guards {
		tables = append(tables, g.Table)
	}
	for _, r := range d.Roles {
		switch {
		case r.Super && !r.Bootstrap:
			supers = append(supers, r.Name)
		}
	}
	if len(supers) > 0 {
		f.addf(guardSuperuser, "ALTER ROLE ... NOSUPERUSER, or NOLOGIN while nobody needs them.",
			"superusers may log in and disable the guards of %s: %s", strings.Join(tables, ", "), strings.Join(supers, ", "))
	}
}
