package config

import (
	"fmt"
	"slices"
	"strings"
)

// suggestKey returns what a user who wrote an unknown key in the group at path may have
// meant, as the end of a sentence. keys are the keys of that group.
func suggestKey(path, key string, keys []string) string {
	if near := nearest(key, keys); near != "" {
		return fmt.Sprintf(": did you mean %q?", join(path, near))
	}
	var elsewhere []string
	for _, s := range new(Config).settings() {
		if s.path == join(path, key) { // with dots, because its group has no such key
			return ": write each part in a group of its own, as " + strings.ReplaceAll(key, ".", ": {") + ": …" + strings.Repeat("}", strings.Count(key, "."))
		}
		if s.path == key || strings.HasSuffix(s.path, "."+key) {
			elsewhere = append(elsewhere, fmt.Sprintf("%q", s.path))
		}
	}
	if len(elsewhere) > 0 {
		return ": did you mean " + strings.Join(elsewhere, " or ") + "?"
	}
	where := "the settings are "
	if path != "" {
		where = path + " has "
	}
	return ": " + where + strings.Join(keys, ", ")
}

// nearest returns the word that word is most likely a misspelling of, "" if there is none.
func nearest(word string, words []string) string {
	best, least := "", 1+max(1, len(word)/3)
	for _, w := range words {
		if d := distance(strings.ToLower(word), strings.ToLower(w)); d < least {
			best, least = w, d
		}
	}
	return best
}

// distance returns how many bytes must be inserted, deleted or replaced to turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = slices.Min([]int{replaced, row[j] + 1, row[j+1] + 1})
		}
	}
	return row[len(b)]
}
