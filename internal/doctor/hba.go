package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

var (
	wayAround = newKind(Warning, "way-around",
		"A write on a direct connection is not fenced: a superseded worker that connects past the proxy can overwrite the work of the leader.")
	hbaInvalid = newKind(Warning, "hba-invalid",
		"Postgres keeps the rules from before while the file has an invalid line, so the rules in force may differ from those in the file.")
)

// ways looks for rules that let roles which may write reach a database from more than
// single hosts. A rule for a single address is taken for that of a proxy, and a rule for
// the database's own host for that of a sidecar.
func (f *findings) ways(d Database, rules []Rule) {
	for _, r := range rules {
		if r.Error != "" {
			f.addf(hbaInvalid, "Correct pg_hba.conf, and reload Postgres.", "pg_hba.conf, line %d: %s", r.Line, r.Error)
		}
	}
	through := make([][]string, len(rules)) // roles, by rule
	for _, role := range d.Roles {
		if role.Writes == "" && !role.Super {
			continue
		}
		for _, i := range open(rules, d.Name, role) {
			through[i] = append(through[i], role.Name)
		}
	}
	for i, roles := range through {
		if len(roles) == 0 {
			continue
		}
		r := rules[i]
		f.add(wayAround, fmt.Sprintf("pg_hba.conf, line %d (%s, method %s), lets roles that may write connect from %s: %s",
			r.Line, r.Type, r.Method, r.from(), strings.Join(roles, ", ")),
			"Restrict the rule to the addresses of the proxies (docs/roles.md). If a firewall or a network policy does that already, nothing is to be done.")
	}
}

// open returns the indexes of the rules by which a role gets in from more than single
// hosts. The first rule that matches decides, as in Postgres.
func open(rules []Rule, database string, role Role) (found []int) {
	var rejected []Rule
	for i, r := range rules {
		switch {
		case r.Error != "" || !matches(r.Databases, database, role, true) || !matches(r.Users, role.Name, role, false):
		case slices.ContainsFunc(rejected, r.within):
		case r.Method == "reject":
			rejected = append(rejected, r)
		case r.single() || r.certified():
		default:
			found = append(found, i)
			rejected = append(rejected, r) // whoever it covers is decided
		}
	}
	return found
}

// matches reports whether a list of a rule names a database or a user. A regular
// expression that Go does not understand is taken to match.
func matches(list []string, name string, role Role, database bool) bool {
	member := func(of string) bool { return of == role.Name || slices.Contains(role.Groups, of) }
	return slices.ContainsFunc(list, func(item string) bool {
		switch {
		case item == "all" || item == name && item != "replication":
			return true
		case strings.HasPrefix(item, "/"):
			re, err := regexp.Compile(item[1:])
			return err != nil || re.MatchString(name)
		case database:
			return item == "sameuser" && name == role.Name || (item == "samerole" || item == "samegroup") && member(name)
		}
		group, ok := strings.CutPrefix(item, "+")
		return ok && member(group)
	})
}

// prefix returns the addresses of a rule; ok is false for a name.
func (r Rule) prefix() (p netip.Prefix, ok bool) {
	addr, err := netip.ParseAddr(r.Address)
	if err != nil {
		return p, false
	}
	bits := addr.BitLen()
	if mask := net.ParseIP(r.Mask); mask != nil {
		if four := mask.To4(); four != nil && addr.Is4() {
			mask = four
		}
		bits, _ = net.IPMask(mask).Size()
	}
	return netip.PrefixFrom(addr, bits), true
}

// within reports whether a rule before this one decides for all that it covers.
func (r Rule) within(before Rule) bool {
	if before.Type != "host" && before.Type != r.Type {
		return false
	}
	if before.Address == "all" || before.Address == r.Address && before.Mask == r.Mask {
		return true
	}
	outer, ok := before.prefix()
	inner, known := r.prefix()
	return ok && known && outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// single reports whether the rule is for one host, or for Postgres's own: a Unix socket has
// no address.
func (r Rule) single() bool {
	if p, ok := r.prefix(); ok {
		return p.IsSingleIP() || p.Addr().IsLoopback() && p.Bits() >= 8
	}
	return r.Address == "samehost" || r.Address != "all" && r.Address != "samenet" && !strings.HasPrefix(r.Address, ".")
}

// certified reports whether the rule requires a client certificate. Who has one is not
// known: it may be the proxy alone.
func (r Rule) certified() bool {
	return r.Method == "cert" || slices.ContainsFunc(r.Options, func(o string) bool { return strings.HasPrefix(o, "clientcert=") })
}

// from returns the addresses as text.
func (r Rule) from() string {
	if p, ok := r.prefix(); ok {
		if p.Bits() == 0 {
			return "anywhere (" + p.String() + ")"
		}
		return p.String()
	}
	if r.Address == "all" {
		return "anywhere"
	}
	return r.Address
}
