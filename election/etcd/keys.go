package etcd

import (
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost/fencepost/election/kv"
)

// held ends the key that is attached to the holder's etcd lease.
const held = "/.held"

// leaseKeys are the keys of one lease.
type leaseKeys struct{ record, held string }

func (s *etcdStore) keys(key string) leaseKeys {
	record := s.prefix + key
	return leaseKeys{record, record + held}
}

func (s *etcdStore) marker() string { return s.prefix + ".generation" }

// values are what etcd has, by key.
type values map[string]*mvccpb.KeyValue

// apply makes the changes that a watch has shown.
func (v values) apply(events []*clientv3.Event) {
	for _, e := range events {
		if e.Type == clientv3.EventTypeDelete {
			delete(v, string(e.Kv.Key))
		} else {
			v[string(e.Kv.Key)] = e.Kv
		}
	}
}

// text returns the value of a key, "" if there is none.
func (v values) text(key string) string {
	if one := v[key]; one != nil {
		return string(one.Value)
	}
	return ""
}

// entry returns what is stored under the keys of a lease, without the marker.
func (v values) entry(k leaseKeys) kv.Entry {
	record, hold := v[k.record], v[k.held]
	if record == nil {
		return kv.Entry{}
	}
	e := kv.Entry{Record: record.Value, Version: record.ModRevision}
	if hold != nil && hold.Lease != 0 && hold.ModRevision == record.ModRevision {
		e.Life = strconv.FormatInt(hold.Lease, 16)
	}
	return e
}

// snapshot returns what all keys mean.
func (s *etcdStore) snapshot(v values) kv.Snapshot {
	snapshot := kv.Snapshot{Marker: v.text(s.marker()), Entries: make(map[string]kv.Entry, len(v))}
	for key := range v {
		if key == s.marker() || strings.HasSuffix(key, held) {
			continue
		}
		name := strings.TrimPrefix(key, s.prefix)
		snapshot.Entries[name] = v.entry(s.keys(name))
	}
	return snapshot
}
