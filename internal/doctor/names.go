package doctor

import (
	"fmt"

	"github.com/fencepost/fencepost/internal/config"
)

var resourceNames = newKind(Warning, "resource-names",
	"Each resource has a leader of its own. If both names mean the same, two workers lead at once, and both may write its tables.")

// names looks for resources that were led and whose names are close to each other. Two that are configured are meant to
// be two.
func (f *findings) names(d Database, s *config.Config) {
	var configured map[string]config.Resource
	if s != nil {
		configured = s.Resources
	}
	var pairs []string
	for i, a := range d.Recorded {
		for _, b := range d.Recorded[i+1:] {
			_, one := configured[a.Resource]
			_, other := configured[b.Resource]
			if !(one && other) && config.Near(a.Resource, b.Resource) {
				pairs = append(pairs, fmt.Sprintf("%q and %q", a.Resource, b.Resource))
			}
		}
	}
	if len(pairs) > 0 {
		f.addf(resourceNames, config.NearRemedy,
			"the names of resources are close to each other: %s", few(pairs))
	}
}
