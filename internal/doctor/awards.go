package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/config"
)

// Recorded is the award under which the present epoch of a resource was granted.
type Recorded struct {
	Resource, Source  string
	Generation, Index int64
}

// Awards is how far the configured lease service has counted.
type Awards struct {
	Source string
	Number int64 // its generation in the database; 0: it is numbered above all others when it is first asked
	Index  int64 // each later award is above it
}

const (
	// An order of an operator leaves the award as it was, and is the source itself.
	recordedSQL = `SELECT f.resource::text, coalesce(g.source, f.source, '')::text, f.source_generation, f.source_index
		FROM fencepost.fence f LEFT JOIN fencepost.generations g ON g.number = f.source_generation WHERE f.source_generation > 0 ORDER BY 1`

	numberSQL = `SELECT coalesce(max(g.number), 0) FROM fencepost.generations g WHERE g.source = $1 AND g.marker = $2`
)

// awards reads how far the configured lease service has counted, after what the fence records was
// read: whatever was granted until then is not above it.
func (f *Facts) awards(ctx context.Context, s Sources, conn *pgx.Conn, d *Database) {
	if s.Settings == nil || s.Position == nil || f.Leases != nil || len(d.Recorded) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	p, err := s.Position(ctx, conn)
	a := Awards{Source: p.Source, Index: p.Index}
	if err == nil {
		err = conn.QueryRow(ctx, numberSQL, p.Source, p.InstanceID).Scan(&a.Number)
	}
	if err != nil {
		f.Failures = append(f.Failures, fmt.Sprintf("compare the awards of the lease service with those that database %s records: %v", d.Name, err))
		return
	}
	d.Awards = &a
}

var awardsBelow = newKind(Error, "awards-below-fence",
	"An award that is older than the recorded one is granted no epoch. So nobody can become leader through this proxy: workers get ZF004.")

// awards looks for resources whose recorded award is newer than those that the configured lease
// service makes. Tokens are not its awards.
func (f *findings) awards(d Database, s *config.Config) {
	if d.Awards == nil {
		return
	}
	of := map[int64][]string{} // by generation, the resources
	var highest []Recorded     // one of each generation
	for _, r := range d.Recorded {
		if d.Awards.Number == 0 || !d.Awards.below(r) || s.Resources[r.Resource].Tokens() {
			continue
		}
		if of[r.Generation] == nil {
			highest = append(highest, r)
		}
		of[r.Generation] = append(of[r.Generation], r.Resource)
		for i, h := range highest {
			if h.Generation == r.Generation {
				highest[i].Index = max(h.Index, r.Index)
			}
		}
	}
	for _, r := range highest {
		seen, do := d.Awards.against(r, d.Name)
		f.addf(awardsBelow, do, "%s: resource %s", seen, few(of[r.Generation]))
	}
}

// below reports whether the next award may not be newer than a recorded one.
func (a Awards) below(r Recorded) bool {
	return a.Number < r.Generation || a.Number == r.Generation && a.Index < r.Index
}

// against says what is wrong with awards that are below a recorded one, and what to do.
func (a Awards) against(r Recorded, database string) (seen, do string) {
	if a.Number == r.Generation {
		seen = fmt.Sprintf("%s has counted its awards to %d, but the fence records award %d of it, as if it had been restored from an older state", a.Source, a.Index, r.Index)
	} else if a.Source == r.Source {
		seen = fmt.Sprintf("the fence records an award of a newer %s (generation %d) than the configured one (generation %d)", r.Source, r.Generation, a.Number)
	} else {
		seen = fmt.Sprintf("the fence records an award of %s (generation %d), but %s is configured, whose awards are older (generation %d)",
			source(r.Source), r.Generation, a.Source, a.Number)
	}
	bump := fmt.Sprintf("run fencepost generation bump --database %s: until then, workers get ZF004", database)
	switch {
	case r.Source == fencing.SourceToken:
		do = fmt.Sprintf("If other proxies set election: token for it, set that here too. If %s is right, and the workers with tokens have stopped, %s.", a.Source, bump)
	case a.Source == r.Source:
		do = fmt.Sprintf("If other proxies of this database use another %s, configure the same one for all. If this one was restored or rebuilt, and all workers of the lost epochs have stopped, %s.", a.Source, bump)
	default:
		do = fmt.Sprintf("If other proxies of this database use %s, configure the same election.provider for all. If %s is the right one, and all workers that lead through %[1]s have stopped, %[3]s.",
			r.Source, a.Source, bump)
	}
	return seen, do
}

// source names a lease service, or what is in its place.
func source(name string) string {
	if name == fencing.SourceToken {
		return "election: token"
	}
	return name
}

// few returns the first names of a list.
func few(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
