package fencing

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxName bounds the names of resources and workers, in bytes.
const MaxName = 200

// NameRule says what the name of a resource or a worker may be.
var NameRule = fmt.Sprintf("A name has 1 to %d bytes of UTF-8, without control characters.", MaxName)

// ValidName reports whether a resource or a worker may have that name.
func ValidName(name string) bool {
	return name != "" && len(name) <= MaxName && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}
