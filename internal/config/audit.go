package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Audit says what is kept of refused and discarded statements in addition to the audit log.
type Audit struct {
	Table bool `yaml:"table"` // count them in the database concerned
	Keep  Age  `yaml:"keep"`  // for how long; 0: for ever
}

// leastKept is the shortest time for which rows may be kept: they are deleted every hour.
const leastKept = Age(time.Hour)

func (a Audit) validate(fault Fault) {
	if a.Keep != 0 && a.Keep < leastKept {
		fault("audit.keep is %s: use at least %s, or 0 to keep everything", a.Keep, leastKept)
	}
}

// Age is a long time, which may be written in days: "30d", "12h".
type Age time.Duration

const day = 24 * time.Hour

// mostDays is a limit that no sum of a time and an Age overflows.
const mostDays = 36500

// D returns the value as a time.Duration.
func (a Age) D() time.Duration { return time.Duration(a) }

// String returns whole days as days, and anything else as a time.Duration does.
func (a Age) String() string {
	if d := time.Duration(a); d > 0 && d%day == 0 {
		return strconv.Itoa(int(d/day)) + "d"
	}
	return time.Duration(a).String()
}

// UnmarshalText parses "30d" or a duration such as "12h". A number without a unit is refused,
// except 0.
func (a *Age) UnmarshalText(text []byte) error {
	if days, ok := strings.CutSuffix(string(text), "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil && n <= mostDays {
			*a = Age(time.Duration(n) * day)
			return nil
		}
	} else if d, err := time.ParseDuration(string(text)); err == nil && d >= 0 {
		*a = Age(d)
		return nil
	}
	return fmt.Errorf("invalid duration %q: use a number with a unit, e.g. 30d, 12h", text)
}
