package kv

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/fencepost/fencepost/election/elector"
)

// The states of a record.
const (
	stateHeld   = "held" // by the life that it was written with, or by no one since that is over
	stateLeft   = "left"
	stateSilent = "silence"
)

// record is what is stored under the key of a lease, from its first award on. People can read it,
// and other proxies learn from it whose lease it is or was.
type record struct {
	State       string    `json:"state"`
	Worker      string    `json:"worker"`
	Incarnation string    `json:"incarnation"`
	Proxy       string    `json:"proxy"`
	Since       time.Time `json:"since"`
	TTL         string    `json:"ttl"` // such as "10s"
	// Silent is how long the worker had been silent when the lease was released because of
	// that, such as "30s".
	Silent string `json:"silent,omitempty"`
}

// recordOf returns the record of an award to the bid at the named proxy.
func recordOf(bid elector.AcquireRequest, proxy string, now time.Time) record {
	return record{State: stateHeld, Worker: bid.Worker, Incarnation: bid.Incarnation, Proxy: proxy, Since: now.UTC(), TTL: bid.TTL.String()}
}

// vacated returns the record of a lease that its holder has released.
func (r record) vacated(why elector.Reason, silent time.Duration) record {
	r.State, r.Silent = stateLeft, ""
	if why == elector.ReasonUnresponsive {
		r.State = stateSilent
		if silent > 0 {
			r.Silent = silent.String()
		}
	}
	return r
}

func (r record) encode() []byte {
	text, err := json.Marshal(r)
	if err != nil {
		panic("kv: encode a record: " + err.Error()) // cannot happen: strings and a time always encode
	}
	return text
}

// decode returns the record. What another program has written is one of no one.
func decode(text []byte) (r record) {
	if json.Unmarshal(text, &r) != nil {
		return record{}
	}
	return r
}

// observe returns the observation of an entry, without the instance id. No entry means that
// no one ever had the lease, or that its record was deleted.
func observe(e Entry) elector.Observation {
	r := decode(e.Record)
	obs := elector.Observation{State: elector.Freed, Incarnation: r.Incarnation, Index: e.Version}
	switch {
	case e.Life != "":
		obs.State = elector.Held
	case r.State == stateSilent:
		obs.State = elector.Unresponsive
		obs.Unconfirmed = duration(r.Silent)
	case r.State == stateHeld:
		obs.Unconfirmed = duration(r.TTL)
	}
	return obs
}

// duration returns 0 for a text that is none.
func duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0
	}
	return d
}

// keyOf returns the key of a lease.
func keyOf(database, resource string) string { return escape(database) + "/" + escape(resource) }

// escape converts a name to one segment of a key. Two names never give the same segment, and
// no segment has a special meaning to a store.
func escape(name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch ch := name[i]; {
		case 'a' <= ch && ch <= 'z', 'A' <= ch && ch <= 'Z', '0' <= ch && ch <= '9', ch == '-', ch == '_':
			b.WriteByte(ch)
		default:
			fmt.Fprintf(&b, "=%02X", ch)
		}
	}
	return b.String()
}

// newMarker returns a marker that no one had before. No restore brings it back by chance,
// unlike whatever a service counts.
func newMarker() string { return rand.Text() }

// isMarker reports whether a text has the form of a marker, with room for those that people write.
func isMarker(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return 0 < len(text) && len(text) <= 64
}
