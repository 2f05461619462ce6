package config

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// separators are what separates the words of a resource's name.
const separators = "-_. :/"

// NearRemedy is what to do about two resources whose names are near.
const NearRemedy = "If both mean the same, correct one, and remove its resource by fencepost resource rm; with unknown_resources: deny, a misspelt name is refused. If not, name both under resources."

// Near reports whether two different names of resources may be meant to be one: they differ in case, in separators, in
// the plural s of one word, or by one edit in one word of at least 5 characters. Names with different numbers are not
// near, and neither are those that differ in a short word, as eu and us, or in the last letter, as sharda and shardb.
func Near(a, b string) bool {
	if a == b || !slices.Equal(numbers(a), numbers(b)) {
		return false
	}
	x, y := words(a), words(b)
	if strings.Join(x, "") == strings.Join(y, "") {
		return true
	}
	if len(x) != len(y) {
		return false
	}
	differ := 0
	for i := range x {
		if x[i] == y[i] {
			continue
		}
		if differ++; !misspelt(x[i], y[i]) {
			return false
		}
	}
	return differ == 1
}

// misspelt reports whether two different words are so much alike that one may be a misspelling of the other.
func misspelt(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	switch {
	case a+"s" == b:
		return len(a) > 2
	case utf8.RuneCountInString(a) < 5 || distance(a, b) != 1:
		return false
	default:
		return len(a) < len(b) || a[:len(a)-1] != b[:len(b)-1]
	}
}

// words returns the words of a name, in lower case.
func words(name string) []string {
	return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return strings.ContainsRune(separators, r) })
}

// numbers returns the numbers in a name, in order.
func numbers(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return r < '0' || r > '9' })
}
