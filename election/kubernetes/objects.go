package kubernetes

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/election/standstill"
)

// The labels and annotations of an object. In the order of these names, nothing comes between
// noteLast and noteRecord, so that a test can find an award on the wire.
const (
	labelPrefix  = "fencepost/prefix" // selects what belongs to a prefix
	labelManaged = "app.kubernetes.io/managed-by"

	noteAward  = "fencepost/award"      // the resourceVersion of the award, from the first renewal on
	noteKey    = "fencepost/key"        // <database>/<resource>
	noteLast   = "fencepost/last-write" // for people
	noteLife   = "fencepost/holder"     // what spec.holderIdentity was when Fencepost wrote the object
	noteMarker = "fencepost/marker"     // of the object that holds the marker
	noteRecord = "fencepost/record"
	noteTTL    = "fencepost/ttl" // exactly; leaseDurationSeconds is rounded up
	noteWrite  = "fencepost/write"
)

// Values of noteLast.
const (
	wroteAward   = "award"
	wroteRenewal = "renewal"
	wroteRelease = "release"
)

// lease is a Lease of the API group coordination.k8s.io. What Fencepost does not set is kept
// when it writes the object.
type lease struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       spec     `json:"spec"`
}

type metadata struct {
	Name            string            `json:"name"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	OwnerReferences json.RawMessage   `json:"ownerReferences,omitempty"`
	Finalizers      []string          `json:"finalizers,omitempty"`
}

// spec is what other programs show of a lease. Fencepost decides by the holder alone: the times
// are of someone's clock, and the transitions start over with a new object.
type spec struct {
	HolderIdentity       string `json:"holderIdentity,omitempty"`
	LeaseDurationSeconds int64  `json:"leaseDurationSeconds,omitempty"`
	AcquireTime          string `json:"acquireTime,omitempty"`
	RenewTime            string `json:"renewTime,omitempty"`
	LeaseTransitions     int32  `json:"leaseTransitions,omitempty"`
}

// list is a list of leases.
type list struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Items []*lease `json:"items"`
}

// note returns an annotation.
func (o *lease) note(name string) string { return o.Metadata.Annotations[name] }

// version returns the resourceVersion as a number. Kubernetes documents that it is one, and that
// it grows with each write of a resource, since version 1.35; it was one before.
func (o *lease) version() (int64, error) {
	v, err := strconv.ParseInt(o.Metadata.ResourceVersion, 10, 64)
	if err != nil || v <= 0 {
		return 0, fmt.Errorf("the resourceVersion %q of the lease %s is not a number, so that awards have no order", o.Metadata.ResourceVersion, o.Metadata.Name)
	}
	return v, nil
}

// holder returns the life that the object was last written with; "" if there is none, or if
// someone else has written the holder.
func (o *lease) holder() string {
	if o.note(noteLife) != o.Spec.HolderIdentity {
		return ""
	}
	return o.Spec.HolderIdentity
}

// stored returns what an object says.
func (o *lease) stored() (*standstill.Stored, error) {
	version, err := o.version()
	if err != nil {
		return nil, err
	}
	award, _ := strconv.ParseInt(o.note(noteAward), 10, 64) // 0 if it is none
	ttl, err := time.ParseDuration(o.note(noteTTL))
	if err != nil { // someone has removed it
		ttl = time.Duration(o.Spec.LeaseDurationSeconds) * time.Second
	}
	return &standstill.Stored{Version: version, Basis: o, Record: standstill.Record{
		Key: o.note(noteKey), Text: []byte(o.note(noteRecord)), Life: o.holder(), TTL: ttl, Award: award, Write: o.note(noteWrite),
	}}, nil
}

// next returns what is written over o, or the new object if o is nil. Each write differs from
// what is there: the API server ignores one that does not, and then the version stays the same.
func (s *service) next(o *lease, r standstill.Record) *lease {
	n := s.object(o, s.nameOf(r.Key))
	notes := n.Metadata.Annotations
	notes[noteKey], notes[noteRecord], notes[noteWrite] = r.Key, string(r.Text), r.Write
	delete(notes, noteAward)
	if r.Award > 0 {
		notes[noteAward] = strconv.FormatInt(r.Award, 10)
	}
	if r.Life == "" {
		delete(notes, noteLife)
		delete(notes, noteTTL)
		notes[noteLast], n.Spec.HolderIdentity = wroteRelease, ""
		return n
	}
	now := microTime(time.Now())
	notes[noteLast] = wroteRenewal
	if r.Award == 0 {
		notes[noteLast] = wroteAward
		n.Spec.AcquireTime = now
		n.Spec.LeaseTransitions++
	}
	notes[noteLife], notes[noteTTL] = r.Life, r.TTL.String()
	n.Spec.HolderIdentity, n.Spec.RenewTime = r.Life, now
	n.Spec.LeaseDurationSeconds = int64((r.TTL + time.Second - 1) / time.Second)
	return n
}

// object returns a copy of o that belongs to the prefix, or a new object if o is nil.
func (s *service) object(o *lease, name string) *lease {
	n := &lease{Metadata: metadata{Name: name}}
	if o != nil {
		*n = *o
	}
	n.APIVersion, n.Kind = "coordination.k8s.io/v1", "Lease"
	n.Metadata.Labels, n.Metadata.Annotations = maps.Clone(n.Metadata.Labels), maps.Clone(n.Metadata.Annotations)
	if n.Metadata.Labels == nil {
		n.Metadata.Labels = map[string]string{}
	}
	if n.Metadata.Annotations == nil {
		n.Metadata.Annotations = map[string]string{}
	}
	n.Metadata.Labels[labelPrefix], n.Metadata.Labels[labelManaged] = s.prefix, "fencepost"
	if n.Spec.LeaseTransitions < 0 || n.Spec.LeaseTransitions == 1<<31-1 {
		n.Spec.LeaseTransitions = 0 // the API server refuses a number below 0
	}
	return n
}

// microTime is how the API writes a MicroTime.
func microTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z07:00") }

// prefixes are what a prefix may be: a part of a name and the value of a label.
var prefixes = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// CheckPrefix returns an error unless the text can be a prefix.
func CheckPrefix(prefix string) error {
	if !prefixes.MatchString(prefix) {
		return fmt.Errorf("%q cannot be a prefix: use 1 to 40 lower-case letters, digits and hyphens, beginning and ending with a letter or digit, e.g. fencepost", prefix)
	}
	return nil
}

// markerName is the name of the object that holds the marker. No lease has it: the last part of
// a lease's name is longer.
func (s *service) markerName() string { return s.prefix + ".generation" }

// nameOf returns the name of the object for a key: the prefix, what people can read of the key,
// and a hash of the key, in lower-case letters and digits. The key itself is in an annotation.
func (s *service) nameOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	hash := strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
	if words := readable(key); words != "" {
		return s.prefix + "." + words + "." + hash
	}
	return s.prefix + "." + hash
}

// readable returns the letters and digits of a key, with hyphens for all else. At most 60
// characters fit into a part of a name.
func readable(key string) string {
	b := bytes.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9':
			return r
		case 'A' <= r && r <= 'Z':
			return r + 'a' - 'A'
		default:
			return '-'
		}
	}, []byte(key))
	return strings.Trim(string(b[:min(len(b), 60)]), "-")
}

// isOf reports whether an object is that of the key which it names. What someone has made or
// copied under another name is not a lease of Fencepost.
func (s *service) isOf(o *lease) bool {
	return o.Metadata.Name == s.nameOf(o.note(noteKey))
}
