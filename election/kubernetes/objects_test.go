package kubernetes

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/election/elector"
)

// What others do to the object of a lease.
func TestOthersWriteTheObject(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		change func(f *fake, name string)
		lost   bool
	}{
		"an annotation of another program": {func(f *fake, name string) {
			f.change(name, func(o *lease) { o.Metadata.Annotations["example.com/note"] = "mine" })
		}, false},
		"its record is overwritten": {func(f *fake, name string) {
			f.change(name, func(o *lease) { o.Metadata.Annotations[noteRecord] = "mine" })
		}, false},
		"its label is removed": {func(f *fake, name string) {
			f.change(name, func(o *lease) { delete(o.Metadata.Labels, labelPrefix) })
		}, false},
		"the award's number is overwritten": {func(f *fake, name string) {
			f.change(name, func(o *lease) { o.Metadata.Annotations[noteAward] = "9223372036854775807" })
		}, false},
		"the holder is removed": {func(f *fake, name string) { f.change(name, func(o *lease) { o.Spec.HolderIdentity = "" }) }, true},
		"the holder is another": {func(f *fake, name string) { f.change(name, func(o *lease) { o.Spec.HolderIdentity = "kubectl" }) }, true},
		"it is deleted":         {func(f *fake, name string) { f.delete(name) }, true},
		"it is deleted and made again": {func(f *fake, name string) {
			o := *f.object(name)
			f.delete(name)
			o.Metadata.UID = ""
			f.change(name, func(n *lease) { n.Metadata.Annotations, n.Spec = o.Metadata.Annotations, spec{} })
		}, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			s := f.store()
			life, version := award(t, s, "award")
			c.change(f, f.service().nameOf(key))
			err := s.Beat(t.Context(), key, life)
			if c.lost != errors.Is(err, elector.ErrLost) || !c.lost && err != nil {
				t.Fatalf("the beat ended with %v", err)
			}
			e := read(t, s)
			if c.lost {
				if e.Life != "" {
					t.Errorf("it is not free: %+v", e)
				}
				if _, next := award(t, s, "next"); next <= version {
					t.Errorf("award %d came after %d", next, version)
				}
				return
			}
			o := f.object(f.service().nameOf(key))
			if e.Life != life || e.Version != version || string(e.Record) != "award" || o.Metadata.Labels[labelPrefix] != "fencepost" {
				t.Errorf("it is read as %+v", e)
			}
			if what == "an annotation of another program" && o.note("example.com/note") != "mine" {
				t.Error("the annotation of another program was removed")
			}
		})
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	s := &service{prefix: "fencepost"}
	seen := map[string]string{s.markerName(): "the marker"}
	for _, key := range []string{
		"db/billing", "db/Billing", "db/bil-ling", "db-billing", "a=2Fb/c", "a/b=2Fc", "=C3=A4/=C3=B6", "/", "generation", "=",
		strings.Repeat("x", 200) + "/" + strings.Repeat("y", 200), strings.Repeat("-", 70),
	} {
		name := s.nameOf(key)
		if other, ok := seen[name]; ok {
			t.Errorf("%q and %q have the name %s", key, other, name)
		}
		seen[name] = key
		if len(name) > 253 {
			t.Errorf("the name of %q has %d characters", key, len(name))
		}
		for _, part := range strings.Split(name, ".") {
			if !namespaces.MatchString(part) {
				t.Errorf("the name of %q is %s", key, name)
			}
		}
	}
	for _, bad := range []string{"", "a.b", "-a", "a-", "A", "a/b", strings.Repeat("a", 41)} {
		if CheckPrefix(bad) == nil {
			t.Errorf("the prefix %q is accepted", bad)
		}
	}
}
