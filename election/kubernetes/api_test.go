package kubernetes

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/standstill"
	"github.com/fencepost/fencepost/internal/faults"
)

// always answers every request with a status.
func always(code int, reason, message string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		status(w, code, reason, message)
		return true
	}
}

// What only an operator can help is an error that says what to do, and no lease is lost by it.
func TestWhatIsDeniedSaysWhatToDo(t *testing.T) {
	t.Parallel()
	const user = `leases.coordination.k8s.io "x" is forbidden: User "system:serviceaccount:apps:fencepost" cannot %s resource`
	for what, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request) bool
		want   []string // in the remedy
	}{
		"no right": {always(http.StatusForbidden, "Forbidden", user),
			[]string{"Role in the namespace apps", "get, list, watch, create and update on leases", "What was refused is update", "etc/kubernetes-leases.yml"}},
		"a quota":               {always(http.StatusForbidden, "Forbidden", "exceeded quota: few"), []string{"ResourceQuota of the namespace apps"}},
		"a namespace that ends": {always(http.StatusForbidden, "Forbidden", "because it is being terminated"), []string{"is being deleted"}},
		"no valid login":        {always(http.StatusUnauthorized, "Unauthorized", "Unauthorized"), []string{"does not accept the credentials", "kubeconfig"}},
		"a webhook":             {always(http.StatusBadRequest, "", "admission webhook denied"), []string{"admission webhook"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			s := f.store()
			life, _ := award(t, s, "award")
			f.answerWith(c.answer)
			err := s.Beat(t.Context(), key, life)
			var denied *elector.DeniedError
			if errors.Is(err, elector.ErrLost) || !errors.As(err, &denied) || denied.Kind != faults.LeaseDenied || denied.Answer == "" {
				t.Fatalf("the beat ended with %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(denied.Remedy, want) {
					t.Errorf("the remedy is %q, and should contain %q", denied.Remedy, want)
				}
			}
			f.answerWith(nil)
			if err := s.Beat(t.Context(), key, life); err != nil {
				t.Errorf("the holder renews with %v", err)
			}
		})
	}
	f := newFake(t)
	elsewhere := f.service()
	elsewhere.api.namespace = "nowhere"
	s := standstill.New(elsewhere, "one", 0)
	for what, err := range map[string]error{
		"Create the namespace nowhere": s.Mark(t.Context(), "m", false),
		"does not serve leases":        s.Watch(t.Context(), nil),
	} {
		var denied *elector.DeniedError
		if !errors.As(err, &denied) || !strings.Contains(denied.Remedy, what) {
			t.Errorf("in a namespace that does not exist: %v, want %s", err, what)
		}
	}
}

// Check tries to write, and writes nothing.
func TestCheckNeedsEveryRight(t *testing.T) {
	t.Parallel()
	lists := func(r *http.Request) bool { return r.URL.Query().Get("labelSelector") != "" }
	watches := func(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }
	for verb, needs := range map[string]func(r *http.Request) bool{
		"get":    func(r *http.Request) bool { return r.Method == http.MethodGet && !lists(r) },
		"list":   func(r *http.Request) bool { return lists(r) && !watches(r) },
		"watch":  watches,
		"create": func(r *http.Request) bool { return r.Method == http.MethodPost },
		"update": func(r *http.Request) bool { return r.Method == http.MethodPut },
	} {
		f := newFake(t)
		s := f.service()
		if err := s.Mark(t.Context(), "marker", false); err != nil {
			t.Fatal(err)
		}
		version := f.object(s.markerName()).Metadata.ResourceVersion
		if err := s.Check(t.Context()); err != nil {
			t.Errorf("with all rights: %v", err)
		}
		f.answerWith(func(w http.ResponseWriter, r *http.Request) bool {
			if needs(r) {
				status(w, http.StatusForbidden, "Forbidden", "no")
			}
			return needs(r)
		})
		if err := s.Check(t.Context()); !isStatus(err, http.StatusForbidden) || !strings.Contains(err.Error(), verb) {
			t.Errorf("without %s: %v", verb, err)
		}
		if now := f.object(s.markerName()).Metadata.ResourceVersion; now != version {
			t.Errorf("the check has written: version %s became %s", version, now)
		}
	}
}
