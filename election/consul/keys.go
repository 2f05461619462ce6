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

// flagUnresponsive, as the flags of an unlocked key, means that its lease was released
// as unresponsive.
const flagUnresponsive = 1

// value is what a lock's entry holds. People can read it, and other proxies learn from
// it whose lease it is.
type value struct {
	Worker      string    `json:"worker"`
	Incarnation string    `json:"incarnation"`
	Proxy       string    `json:"proxy"`
	Since       time.Time `json:"since"`
	// TTL is that of the lease, such as "10s". Released means that the entry was written
	// when the lease was released: an entry that is not locked and not released expired.
	TTL      string `json:"ttl,omitempty"`
	Released bool   `json:"released,omitempty"`
	// Silent is how long the worker had been silent when its lease was released because of
	// that, such as "30s".
	Silent string `json:"silent,omitempty"`
}

func (c *Client) instanceKey() string { return c.cfg.Prefix + "/.generation" }

func (c *Client) key(database, resource string) string {
	return c.cfg.Prefix + "/" + escape(database) + "/" + escape(resource)
}

// escape converts a name to one segment of a key. Two names never give the same
// segment, and no segment has a special meaning in a path.
func escape(name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch ch := name[i]; {
		case 'a' <= ch && ch <= 'z', 'A' <= ch && ch <= 'Z', '0' <= ch && ch <= '9', ch == '-', ch == '_':
			b.WriteByte(ch)
		default:
			fmt.Fprintf(&b, "=%02X", ch) // not %, which Consul would decode
		}
	}
	return b.String()
}

func newInstanceID() string { return rand.Text() }

func (c *Client) encode(bid election.AcquireRequest, released bool, silent time.Duration) []byte {
	v := value{
		Worker: bid.Worker, Incarnation: bid.Incarnation, Proxy: c.cfg.Proxy, Since: time.Now().UTC(),
		TTL: bid.TTL.String(), Released: released,
	}
	if silent > 0 {
		v.Silent = silent.String()
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic("consul elector: encode a lease: " + err.Error()) // cannot happen: strings and a time always encode
	}
	return text
}

// observationOf returns the observation of an entry. A nil pair means that nobody ever
// had the lease, or that its key was deleted.
func observationOf(pair *api.KVPair, instanceID string) election.LeaseObservation {
	if pair == nil {
		return election.LeaseObservation{State: election.Freed, InstanceID: instanceID}
	}
	var v value
	_ = json.Unmarshal(pair.Value, &v) // another program's value has no incarnation, and that is all that matters
	obs := election.LeaseObservation{State: election.Freed, Incarnation: v.Incarnation, Index: int64(pair.ModifyIndex), InstanceID: instanceID}
	switch {
	case pair.Session != "":
		obs.State = election.Held
	case pair.Flags == flagUnresponsive:
		obs.State = election.Unresponsive
		obs.Unconfirmed, _ = time.ParseDuration(v.Silent) // 0 if another version wrote the entry
	case !v.Released:
		obs.Unconfirmed, _ = time.ParseDuration(v.TTL) // 0 if another version wrote the entry
	}
	return obs
}
