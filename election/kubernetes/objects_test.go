package kubernetes

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/standstill"
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
			c.change(f, s.nameOf(key))
			err := s.Beat(t.Context(), key, life)
			if c.lost != errors.Is(err, election.ErrLost) || !c.lost && err != nil {
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
			o := f.object(s.nameOf(key))
			if e.Life != life || e.Version != version || string(e.Record) != "award" || o.Metadata.Labels[labelPrefix] != "fencepost" {
				t.Errorf("it is read as %+v", e)
			}
			if what == "an annotation of another program" && o.note("example.com/note") != "mine" {
				t.Error("the annotation of another program was removed")
			}
		})
	}
}

// A lease is free when its object has stood still for its TTL, whatever the clocks of others say.
func TestALeaseIsFreeWhenItStandsStill(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	holder, other := f.store(), f.store()
	now := time.Hour
	other.still = standstill.New(func() time.Duration { return now })
	life, _ := award(t, holder, "award")
	isHeld := func(want bool) {
		t.Helper()
		if e := read(t, other); (e.Life == life) != want {
			t.Errorf("after %v it is read as %+v", now-time.Hour, e)
		}
	}
	wait := func(d time.Duration) {
		for range d / time.Second {
			now += time.Second
			other.still.Hear() // the API server answers all the time
		}
	}
	now += 10 * time.Minute // it was awarded long before it is first seen
	isHeld(true)
	wait(59 * time.Second)
	isHeld(true)
	if err := holder.Beat(t.Context(), key, life); err != nil {
		t.Fatal(err)
	}
	wait(2 * time.Second)
	isHeld(true)
	wait(59 * time.Second)
	isHeld(true)
	wait(time.Second)
	isHeld(false)
	if err := holder.Beat(t.Context(), key, life); err != nil { // nobody has taken it
		t.Errorf("the holder renews with %v", err)
	}
	isHeld(true)
	wait(30 * time.Second)
	now += 45 * time.Second // the API server is away, and nobody can renew
	isHeld(true)
	wait(59 * time.Second)
	isHeld(true)
	wait(time.Second)
	isHeld(false)
	f.change(holder.nameOf(key), func(o *lease) {
		o.Metadata.Annotations[noteTTL] = "876000h"
		o.Spec.LeaseDurationSeconds = 1 << 31
	})
	isHeld(true)
	wait(mostTTL)
	isHeld(false)
}

// What others write is no sign of life of the holder, however often they do.
func TestALeaseIsFreeAlthoughOthersWriteTheObject(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	holder, other := f.store(), f.store()
	now := time.Hour
	other.still = standstill.New(func() time.Duration { return now })
	life, _ := award(t, holder, "award")
	for i := range 13 {
		want := life
		if i == 12 { // the TTL is a minute
			want = ""
		}
		if e := read(t, other); e.Life != want {
			t.Errorf("after %d s it is held by %q", 5*i, e.Life)
		}
		f.change(holder.nameOf(key), func(o *lease) { o.Metadata.Annotations["example.com/note"] = strings.Repeat("x", i) })
		now += 5 * time.Second
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	s := &store{prefix: "fencepost"}
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
