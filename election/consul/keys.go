package consul

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fencepost/fencepost/election"
)

// flagUnresponsive, as the flags of an unlocked key, says that its lease was
// released for silence.
const flagUnresponsive = 1

// value is what a lock's entry holds: for people who look at the key, and for
// other proxies to know whose lease it is.
type value struct {
	Worker      string    `json:"worker"`
	Incarnation string    `json:"incarnation"`
	Proxy       string    `json:"proxy"`
	Since       time.Time `json:"since"`
}

func (c *Client) instanceKey() string { return c.cfg.Prefix + "/.generation" }

func (c *Client) key(database, resource string) string {
	return c.cfg.Prefix + "/" + escape(database) + "/" + escape(resource)
}

// escape makes a name one segment of a key: whatever it holds, two names never
// give the same key, and no segment is special to a path.
func escape(name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch ch := name[i]; {
		case 'a' <= ch && ch <= 'z', 'A' <= ch && ch <= 'Z', '0' <= ch && ch <= '9', ch == '-', ch == '_':
			b.WriteByte(ch)
		default:
			fmt.Fprintf(&b, "=%02X", ch) // Consul would decode a % of ours
		}
	}
	return b.String()
}

func newInstanceID() string { return rand.Text() }

func (c *Client) encode(bid election.AcquireRequest) []byte {
	text, err := json.Marshal(value{Worker: bid.Worker, Incarnation: bid.Incarnation, Proxy: c.cfg.Proxy, Since: time.Now().UTC()})
	if err != nil {
		panic("consul elector: encode a lease: " + err.Error()) // strings and a time always encode
	}
	return text
}

// observationOf is what an entry says. nil is a lease that nobody ever had, or whose
// key was deleted.
func observationOf(pair *api.KVPair, marker string) election.LeaseObservation {
	if pair == nil {
		return election.LeaseObservation{State: election.Freed, InstanceID: marker}
	}
	var v value
	_ = json.Unmarshal(pair.Value, &v) // another's text has no incarnation, and that is all there is to know
	sight := election.LeaseObservation{State: election.Freed, Incarnation: v.Incarnation, Index: int64(pair.ModifyIndex), InstanceID: marker}
	switch {
	case pair.Session != "":
		sight.State = election.Held
	case pair.Flags == flagUnresponsive:
		sight.State = election.Unresponsive
	}
	return sight
}
