package config

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// sources is where each setting got its value, by path: a file's name and line, or the
// name of an environment variable. Mappings and lists are settings too.
type sources map[string]string

// of returns where the setting that a fault begins with, or one that contains it, got its
// value; "" if it has its default.
func (s sources) of(fault string) string {
	best := ""
	for path := range s {
		rest, ok := strings.CutPrefix(fault, path)
		if ok && len(path) > len(best) && (rest == "" || rest[0] == ' ' || rest[0] == '.') {
			best = path
		}
	}
	return s[best]
}

// decoder decodes a YAML file into settings, and collects everything that is wrong.
type decoder struct {
	file    string
	sources sources
	faults  []fault
}

// fault is something that is wrong with the configuration.
type fault struct {
	line int // in the file; 0 if it is not there
	text string
}

// fault records what is wrong at a node.
func (d *decoder) fault(n *yaml.Node, format string, args ...any) {
	d.faults = append(d.faults, fault{n.Line, fmt.Sprintf("%s:%d: %s", d.file, n.Line, fmt.Sprintf(format, args...))})
}

// syntaxLine matches the line number in an error of the YAML parser.
var syntaxLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// decode reads the file's text into c.
func (d *decoder) decode(text []byte, c *Config) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var document yaml.Node
	err := dec.Decode(&document)
	switch {
	case errors.Is(err, io.EOF):
		return
	case err != nil:
		d.syntax(err)
		return
	}
	left := maxNodes
	if !d.finite(&document, nil, &left) {
		return
	}
	d.value(document.Content[0], reflect.ValueOf(c).Elem(), "")
	var more yaml.Node
	if err := dec.Decode(&more); err == nil {
		d.fault(&more, "more than one YAML document: the configuration is one")
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
	}
}

// maxNodes is how many values a configuration may have, each alias counted as what it refers to.
const maxNodes = 100_000

// finite reports whether a node, which is in those around it, has a finite number of values, and no more
// than are left, when its aliases are replaced by what they stand for. It records why not.
func (d *decoder) finite(n *yaml.Node, around []*yaml.Node, left *int) bool {
	if n.Kind == yaml.AliasNode {
		if slices.Contains(around, n.Alias) {
			d.fault(n, "*%s is a part of what it refers to", n.Value)
			return false
		}
		n = n.Alias
	}
	if *left--; *left < 0 {
		d.fault(n, "the configuration has more than %d values: use fewer aliases", maxNodes)
		return false
	}
	around = append(around, n)
	for _, part := range n.Content {
		if !d.finite(part, around, left) {
			return false
		}
	}
	return true
}

// syntax records that the text is not YAML.
func (d *decoder) syntax(err error) {
	text := err.Error()
	at := syntaxLine.FindStringSubmatch(text)
	n := yaml.Node{Line: 1}
	if len(at) > 0 {
		text = text[len(at[0]):]
		n.Line = max(1, atoi(at[1]))
	}
	d.fault(&n, "not valid YAML: %s", text)
}

func atoi(text string) int {
	n, _ := strconv.Atoi(text) // 0 if there is none
	return n
}

// value decodes a node into v, the setting at path. A setting without a value keeps its
// default.
func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return
	}
	if path != "" {
		d.sources[path] = fmt.Sprintf("%s:%d", d.file, n.Line)
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	_, isText := v.Addr().Interface().(encoding.TextUnmarshaler)
	switch {
	case isText && v.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		d.list(n, v, path)
	case isText:
		d.scalar(n, v, path)
	case v.Kind() == reflect.Struct:
		d.pairs(n, path, func(key, value *yaml.Node) { d.field(key, value, v, path) })
	case v.Kind() == reflect.Map:
		d.mapping(n, v, path)
	case v.Kind() == reflect.Slice:
		d.list(n, v, path)
	default:
		d.scalar(n, v, path)
	}
}

// pairs calls each with every key of a mapping and its value. The keys of a merge come
// first, so that the mapping's own override them.
func (d *decoder) pairs(n *yaml.Node, path string, each func(key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		what := path
		if what == "" {
			what = "the configuration"
		}
		d.fault(n, "%s must be a mapping, with one key: value per line", what)
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].ShortTag() != "!!merge" {
			continue
		}
		for _, m := range merged(n.Content[i+1]) {
			d.pairs(m, path, each)
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.ShortTag() == "!!merge" {
			continue
		}
		if line, twice := seen[key.Value]; twice {
			d.fault(key, "%s is already set in line %d", join(path, key.Value), line)
			continue
		}
		seen[key.Value] = key.Line
		each(key, n.Content[i+1])
	}
}

// merged returns the mappings that a merge names, the most important one last.
func merged(n *yaml.Node) []*yaml.Node {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.SequenceNode {
		return []*yaml.Node{n}
	}
	var all []*yaml.Node
	for _, m := range slices.Backward(n.Content) {
		all = append(all, merged(m)...)
	}
	return all
}

// join returns the path of a setting. An embedded group, whose key is "", has the path of the group around it.
func join(path, key string) string {
	if path == "" || key == "" {
		return path + key
	}
	return path + "." + key
}

// field decodes the setting with this key, of the group v at path.
func (d *decoder) field(key, value *yaml.Node, v reflect.Value, path string) {
	var keys []string
	for _, f := range reflect.VisibleFields(v.Type()) {
		name := f.Tag.Get("yaml")
		switch name {
		case "": // its fields follow
			continue
		case key.Value:
			d.groupOrShort(value, v.FieldByIndex(f.Index), join(path, name), f.Tag.Get("short"))
			return
		}
		keys = append(keys, name)
	}
	if why := gone[key.Value]; why != "" && v.Type() == reflect.TypeFor[Resource]() {
		d.fault(key, "%s is gone: %s Delete this line", join(path, key.Value), why)
		return
	}
	d.fault(key, "unknown setting %q%s", join(path, key.Value), suggestKey(path, key.Value, keys))
}

// gone has the settings of a resource that an earlier Fencepost had, with what has become of what they were for.
var gone = map[string]string{
	"reads": "no statement of a leader is checked any more, so reads need no exception.",
}

// groupOrShort decodes a setting, or a group that may also be the single value of the setting
// in it that short names.
func (d *decoder) groupOrShort(n *yaml.Node, v reflect.Value, path, short string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case short == "" || n.Kind == yaml.MappingNode || n.ShortTag() == "!!null":
		d.value(n, v, path)
	case n.Kind != yaml.ScalarNode:
		d.fault(n, "%s must be a single value, which is its %s, or a mapping", path, short)
	default:
		d.sources[path] = fmt.Sprintf("%s:%d", d.file, n.Line)
		d.field(&yaml.Node{Kind: yaml.ScalarNode, Value: short, Line: n.Line}, n, v, path)
	}
}

// mapping decodes a mapping with arbitrary keys.
func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	m := reflect.MakeMap(v.Type())
	d.pairs(n, path, func(key, value *yaml.Node) {
		element := reflect.New(v.Type().Elem()).Elem()
		d.value(value, element, join(path, key.Value))
		m.SetMapIndex(reflect.ValueOf(key.Value), element)
	})
	v.Set(m)
}

// list decodes a list of words, or of groups. The elements of the latter are numbered from 1.
func (d *decoder) list(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.fault(n, "%s must be a list, e.g. [a, b]", path)
		return
	}
	list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		if !isGroups(v) {
			d.scalar(item, list.Index(i), path)
			continue
		}
		of := fmt.Sprintf("%s.%d", path, i+1)
		d.sources[of] = fmt.Sprintf("%s:%d", d.file, item.Line)
		d.value(item, list.Index(i), of)
	}
	v.Set(list)
}

// isGroups reports whether v is a list of groups of settings.
func isGroups(v reflect.Value) bool {
	if v.Kind() != reflect.Slice || v.Type().Elem().Kind() != reflect.Struct {
		return false
	}
	_, isText := reflect.New(v.Type().Elem()).Interface().(encoding.TextUnmarshaler)
	return !isText
}

// scalar decodes a single value.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	d.sources[path] = fmt.Sprintf("%s:%d", d.file, n.Line)
	if n.Kind != yaml.ScalarNode {
		d.fault(n, "%s must be a single value", path)
		return
	}
	text := n.Value
	if v.Kind() == reflect.Bool { // yes and on are true in YAML
		var b bool
		if n.Decode(&b) == nil {
			text = strconv.FormatBool(b)
		}
	}
	if err := (setting{path: path, value: v}).set(text); err != nil {
		d.fault(n, "%s: %v", path, err)
	}
}
