package config

import (
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// setting is a setting with a single value.
type setting struct {
	path  string // as in the file: "election.consul.token"
	short string // the path of its group, if that may stand for it: "unfenced"
	value reflect.Value
}

// env returns the variable that overrides the setting: FENCEPOST_ followed by its path
// in upper case, with _ for each dot.
func (s setting) env() string { return variable(s.path) }

// envs returns all variables that override the setting.
func (s setting) envs() []string {
	if s.short == "" {
		return []string{s.env()}
	}
	return []string{s.env(), variable(s.short)}
}

func variable(path string) string {
	return "FENCEPOST_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// set parses text as the setting's value.
func (s setting) set(text string) error {
	if u, ok := s.value.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch s.value.Kind() {
	case reflect.String:
		s.value.SetString(text)
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("invalid number %q: use an integer, e.g. 1000", text)
		}
		s.value.SetInt(int64(n))
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("invalid boolean %q: use true or false", text)
		}
		s.value.SetBool(b)
	default:
		return fmt.Errorf("cannot be set from the environment")
	}
	return nil
}

// settings returns every single-valued setting, in the order of the struct. Mappings
// with free keys (resources, unfenced.users) and lists of groups (routes) are not included:
// they can only be set in the file.
func (c *Config) settings() []setting {
	var leaves []setting
	var walk func(group, short string, v reflect.Value)
	walk = func(group, short string, v reflect.Value) {
		for i := range v.NumField() {
			tag := v.Type().Field(i).Tag
			path := join(group, tag.Get("yaml"))
			switch f := v.Field(i); {
			case f.Kind() == reflect.Struct:
				walk(path, tag.Get("short"), f)
			case f.Kind() == reflect.Map, isGroups(f):
			default:
				leaf := setting{path: path, value: f}
				if short != "" && tag.Get("yaml") == short {
					leaf.short = group
				}
				leaves = append(leaves, leaf)
			}
		}
	}
	walk("", "", reflect.ValueOf(c).Elem())
	return leaves
}

// foreign are variables with Fencepost's prefix that are not settings. Kubernetes gives
// every pod the addresses of the services next to it, whose names may begin with fencepost.
var foreign = regexp.MustCompile(`^FENCEPOST_(?:CONFIG|DSN|TEST_\w+|CHAOS_\w+` +
	`|(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?))$`)

// override applies the environment variables to c. One with Fencepost's prefix that is
// no setting is a fault.
func (d *decoder) override(environ []string, c *Config) {
	known := map[string]setting{}
	var names []string
	for _, s := range c.settings() {
		for _, name := range s.envs() {
			known[name] = s
		}
		names = append(names, s.env())
	}
	for _, variable := range slices.Sorted(slices.Values(environ)) {
		name, text, _ := strings.Cut(variable, "=")
		s, ok := known[name]
		switch {
		case text == "" || !strings.HasPrefix(name, "FENCEPOST_"):
		case ok:
			d.sources[s.path] = name
			if err := s.set(text); err != nil {
				d.faults = append(d.faults, fault{text: fmt.Sprintf("environment variable %s: %v", name, err)})
			}
		case !foreign.MatchString(name):
			d.faults = append(d.faults, fault{text: fmt.Sprintf("environment variable %s is not a setting%s", name, suggestVariable(name, names))})
		}
	}
}

// suggestVariable returns what a user who set an unknown variable may have meant, as the
// end of a sentence.
func suggestVariable(name string, names []string) string {
	for _, prefix := range []string{"FENCEPOST_RESOURCES", "FENCEPOST_ROUTES", "FENCEPOST_UNFENCED_USERS"} {
		if strings.HasPrefix(name, prefix) {
			return ": resources, routes and unfenced.users can only be set in the file"
		}
	}
	const prefix = "FENCEPOST_"
	own := make([]string, len(names))
	for i, n := range names {
		own[i] = n[len(prefix):]
	}
	if near := nearest(name[len(prefix):], own); near != "" {
		return fmt.Sprintf(": did you mean %s%s?", prefix, near)
	}
	return ": remove it, or see docs/configuration.md for the settings"
}
