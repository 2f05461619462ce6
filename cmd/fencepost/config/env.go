package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// setting is a setting with a single value.
type setting struct {
	path  string // as in the file: "election.consul.token"
	value reflect.Value
}

// env returns the variable that overrides the setting: FENCEPOST_ followed by its path
// in upper case, with _ for each dot.
func (s setting) env() string {
	return "FENCEPOST_" + strings.ToUpper(strings.ReplaceAll(s.path, ".", "_"))
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
			return fmt.Errorf("invalid integer %q", text)
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
// with free keys (resources, unfenced.users) are not included: they can only be set in
// the file.
func (c *Config) settings() []setting {
	var leaves []setting
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			path := prefix + v.Type().Field(i).Tag.Get("yaml")
			switch f := v.Field(i); f.Kind() {
			case reflect.Struct:
				walk(path+".", f)
			case reflect.Map:
			default:
				leaves = append(leaves, setting{path: path, value: f})
			}
		}
	}
	walk("", reflect.ValueOf(c).Elem())
	return leaves
}

// override applies the environment variables to c.
func (c *Config) override(getenv func(string) string) error {
	for _, s := range c.settings() {
		text := getenv(s.env())
		if text == "" {
			continue
		}
		if err := s.set(text); err != nil {
			return fmt.Errorf("environment variable %s: %w", s.env(), err)
		}
	}
	return nil
}
