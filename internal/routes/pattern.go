package routes

import (
	"fmt"
	"strings"
)

// Pattern is a name, or the beginning of names with a * after it. Upper and lower case
// differ, as in Postgres. The empty Pattern is no condition.
type Pattern string

// UnmarshalText takes the text of a pattern. An empty one is refused, since it would match
// everything, which is easily the result of a variable that is not set.
func (p *Pattern) UnmarshalText(text []byte) error {
	*p = Pattern(text)
	switch at := strings.IndexByte(string(text), '*'); {
	case len(text) == 0:
		return fmt.Errorf("a pattern is empty: leave it out if anything may match")
	case at >= 0 && at < len(text)-1:
		return fmt.Errorf("invalid pattern %q: a * can only be its last character", text)
	}
	return nil
}

// Open reports whether the pattern ends in *.
func (p Pattern) Open() bool { return strings.HasSuffix(string(p), "*") }

// Matches reports whether a name has the pattern.
func (p Pattern) Matches(name string) bool {
	if p.Open() {
		return strings.HasPrefix(name, p.prefix())
	}
	return p == "" || string(p) == name
}

// prefix returns the pattern without its *.
func (p Pattern) prefix() string { return strings.TrimSuffix(string(p), "*") }

// covers reports whether each name that has the pattern other has this one too.
func (p Pattern) covers(other Pattern) bool {
	switch {
	case p == "" || p == "*":
		return true
	case other == "":
		return false
	case other.Open():
		return p.Open() && strings.HasPrefix(other.prefix(), p.prefix())
	default:
		return p.Matches(string(other))
	}
}
