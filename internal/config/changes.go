package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Change is a setting that has one value in a running proxy and another one in its
// configuration.
type Change struct {
	Setting string `json:"setting"` // its path, such as resources.billing.users
	// Old and New are the values as text; "" means that the setting has none. Those of a
	// secret are hidden.
	Old string `json:"old"`
	New string `json:"new"`
	// Applied means that the new value is in effect. Otherwise it needs a restart.
	Applied bool `json:"applied"`
	// Note, if not "", says where an applied value is not in effect yet, and from when on it is.
	Note string `json:"note,omitempty"`
}

// reloadable are the settings that a running proxy can change: those with one of these
// paths, and everything below it. docs/configuration.md lists them too; a test compares the
// two.
var reloadable = []string{
	"lease.linger", "lease.max_worker_timeout", "lease.max_worker_timeout_factor", "lease.ttl", "lease.worker_timeout",
	"admin.open_reads", "admin.token", "admin.token_file", "console", "upstream.application_name", "shutdown_delay", "drain_timeout", "unfenced", "worker.identity", "resources", "routes",
	"limits.max_connections", "limits.max_resources", "limits.resources_per_user", "limits.resources_per_connection", "unknown_resources",
	"log.level", "log.connections", "audit",
}

// secrets are the settings whose values are never shown.
var secrets = []string{"admin.token", "console.password", "control.password", "election.consul.token", "election.etcd.password", "election.redis.password", "election.zookeeper.password"}

// hidden is shown instead of a secret.
const hidden = "******"

// Reload returns the configuration of a proxy that runs with c and is to run with next: next
// with the values of c in those settings that need a restart. changes are all settings in
// which c and next differ, in the order of the configuration. Both remain unchanged.
func (c *Config) Reload(next *Config) (_ *Config, changes []Change) {
	reloaded := *next // the maps are shared, but they are reloadable and thus only read
	compare("", reflect.ValueOf(c).Elem(), reflect.ValueOf(&reloaded).Elem(), func(path string, old, new reflect.Value) {
		change := Change{Setting: path, Old: text(old), New: text(new), Applied: isBelow(path, reloadable)}
		if change.Old == change.New {
			return
		}
		if slices.Contains(secrets, path) {
			change.Old, change.New = hide(change.Old), hide(change.New)
		}
		if !change.Applied {
			new.Set(old)
		}
		changes = append(changes, change)
	})
	return &reloaded, changes
}

// Setting is a setting of a running proxy.
type Setting struct {
	Name string // its path
	// Value and Default are texts, "" for none. Those of a secret are hidden.
	Value, Default string
	Reloads        bool // a reload can change it
}

// Settings returns all settings, in the order of the configuration.
func (c *Config) Settings() (all []Setting) {
	otherwise := Default()
	compare("", reflect.ValueOf(&otherwise).Elem(), reflect.ValueOf(c).Elem(), func(path string, old, new reflect.Value) {
		s := Setting{Name: path, Value: text(new), Default: text(old), Reloads: isBelow(path, reloadable)}
		if slices.Contains(secrets, path) {
			s.Value, s.Default = hide(s.Value), hide(s.Default)
		}
		all = append(all, s)
	})
	return all
}

// compare calls leaf with each setting of two values of the same type, the group at path. An
// entry that only one of two mappings has is compared with the zero value.
func compare(path string, old, new reflect.Value, leaf func(path string, old, new reflect.Value)) {
	switch old.Kind() {
	case reflect.Struct:
		for i := range old.NumField() {
			compare(join(path, old.Type().Field(i).Tag.Get("yaml")), old.Field(i), new.Field(i), leaf)
		}
	case reflect.Map:
		keys := map[string]reflect.Value{}
		for _, m := range []reflect.Value{old, new} {
			for _, key := range m.MapKeys() {
				keys[key.String()] = key
			}
		}
		for _, name := range slices.Sorted(maps.Keys(keys)) {
			before, after := old.MapIndex(keys[name]), new.MapIndex(keys[name])
			if old.Type().Elem().Kind() == reflect.Struct { // that it is listed means something by itself
				leaf(join(path, name), reflect.ValueOf(listed(before)), reflect.ValueOf(listed(after)))
			}
			zero := reflect.Zero(old.Type().Elem())
			compare(join(path, name), orElse(before, zero), orElse(after, zero), leaf)
		}
	default:
		leaf(path, old, new)
	}
}

func orElse(v, otherwise reflect.Value) reflect.Value {
	if v.IsValid() {
		return v
	}
	return otherwise
}

// listed says whether a mapping has an entry.
func listed(entry reflect.Value) string {
	if entry.IsValid() {
		return "listed"
	}
	return "not listed"
}

// text returns a value as in the file, "" for none.
func text(v reflect.Value) string {
	if inOneLine, ok := v.Interface().(fmt.Stringer); ok && v.Kind() == reflect.Slice {
		return inOneLine.String()
	}
	switch {
	case v.Kind() == reflect.Pointer && v.IsNil():
		return ""
	case v.Kind() == reflect.Pointer:
		return fmt.Sprint(v.Elem().Interface())
	case v.Kind() == reflect.Slice && v.IsNil():
		return ""
	case v.Kind() == reflect.Slice:
		return fmt.Sprintf("%q", v.Interface())
	default:
		return fmt.Sprint(v.Interface())
	}
}

func hide(value string) string {
	if value == "" {
		return ""
	}
	return hidden
}

// isBelow reports whether a path is one of these, or below one.
func isBelow(path string, these []string) bool {
	return slices.ContainsFunc(these, func(p string) bool { return path == p || strings.HasPrefix(path, p+".") })
}
