package config

import (
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Address is where a socket is: host:port, or the absolute path of a Unix socket, which may be
// written with unix: before it.
type Address string

// UnmarshalText parses an address. Validate says what is wrong with it.
func (a *Address) UnmarshalText(text []byte) error {
	*a = Address(strings.TrimPrefix(string(text), "unix:"))
	return nil
}

// Network returns the network of the address, as package net names it.
func (a Address) Network() string {
	if strings.HasPrefix(string(a), "/") {
		return "unix"
	}
	return "tcp"
}

// Addresses are one or more addresses. They may be written as a list, or in one line with
// commas between them.
type Addresses []Address

// UnmarshalText parses addresses in one line.
func (l *Addresses) UnmarshalText(text []byte) error {
	list, err := inOneLine[Address](string(text))
	*l = list
	return err
}

func (l Addresses) String() string { return oneLine(l) }

// Subnet is a range of IP addresses.
type Subnet struct{ netip.Prefix }

// UnmarshalText parses an address, or a range of them such as 10.0.0.0/8.
func (s *Subnet) UnmarshalText(text []byte) error {
	if addr, err := netip.ParseAddr(string(text)); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		s.Prefix = netip.PrefixFrom(addr, addr.BitLen())
		return nil
	}
	prefix, err := netip.ParsePrefix(string(text))
	switch {
	case err != nil || prefix.Addr().Is4In6():
		return fmt.Errorf("invalid address %q: use an IP address or a range, e.g. 192.168.1.5 or 10.0.0.0/8", text)
	case prefix != prefix.Masked():
		return fmt.Errorf("invalid range %q: use %s for the range, or %s for the address", text, prefix.Masked(), prefix.Addr())
	}
	s.Prefix = prefix
	return nil
}

// Subnets are any number of ranges, written as Addresses are.
type Subnets []Subnet

// UnmarshalText parses ranges in one line.
func (l *Subnets) UnmarshalText(text []byte) error {
	list, err := inOneLine[Subnet](string(text))
	*l = list
	return err
}

func (l Subnets) String() string { return oneLine(l) }

// Prefixes returns the ranges.
func (l Subnets) Prefixes() []netip.Prefix {
	var prefixes []netip.Prefix
	for _, s := range l {
		prefixes = append(prefixes, s.Prefix)
	}
	return prefixes
}

// inOneLine parses the elements of a list that is written in one line.
func inOneLine[T any, P interface {
	*T
	UnmarshalText(text []byte) error
}](text string) ([]T, error) {
	var list []T
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		var t T
		if err := P(&t).UnmarshalText([]byte(strings.TrimSpace(item))); err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, nil
}

func oneLine[T any](list []T) string {
	words := make([]string, len(list))
	for i, item := range list {
		words[i] = fmt.Sprint(item)
	}
	return strings.Join(words, ",")
}

// FileMode is the permissions of a file, written in octal.
type FileMode fs.FileMode

// UnmarshalText parses permissions.
func (m *FileMode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(strings.TrimPrefix(string(text), "0o"), 8, 32)
	if err != nil || n > 0o777 {
		return fmt.Errorf("invalid permissions %q: use up to four octal digits, e.g. 0770", text)
	}
	*m = FileMode(n)
	return nil
}

func (m FileMode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// socketName begins the name of a socket of Postgres, which ends with the port.
const socketName = ".s.PGSQL."

// Endpoints returns where Postgres listens, each as package net names an address. The path of a
// directory, which is any path that is not one of a socket, means the socket of port 5432 in it.
func (u Upstream) Endpoints() []string {
	all := make([]string, len(u.Address))
	for i, a := range u.Address {
		all[i] = string(a)
		if a.Network() == "unix" && !strings.HasPrefix(filepath.Base(all[i]), socketName) {
			all[i] = filepath.Join(all[i], socketName+"5432")
		}
	}
	return all
}

// maxPath is how long the path of a Unix socket may be, in bytes.
const maxPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// checkSocket reports what is wrong with an address that may also be a path.
func checkSocket(fault Fault, where string, a Address) {
	switch {
	case a.Network() == "unix" && len(a) > maxPath:
		fault("%s is %q: the system allows %d bytes for the path of a Unix socket", where, string(a), maxPath)
	case a.Network() == "unix" && strings.HasSuffix(string(a), "/"):
		fault("%s is %q: name the socket in the directory, e.g. %s.s.PGSQL.6432", where, string(a), string(a))
	case a.Network() == "unix":
	case !strings.Contains(string(a), ":"):
		fault("%s is %q: use host:port, e.g. 127.0.0.1:5432, or the absolute path of a Unix socket", where, string(a))
	default:
		checkAddress(fault, where, string(a))
	}
}

// validateListen checks the addresses that workers connect to.
func (c *Config) validateListen(fault Fault) {
	if len(c.Listen) == 0 {
		fault("listen is empty: name at least one address, e.g. 127.0.0.1:6432")
	}
	seen := map[Address]bool{}
	for _, a := range c.Listen {
		_, port, _ := net.SplitHostPort(string(a))
		if seen[a] && port != "0" {
			fault("listen has %s twice: remove one", a)
		}
		seen[a] = true
		checkSocket(fault, "listen", a)
		if a.Network() == "unix" && (c.TLS.ClientCert == "verify-ca" || c.TLS.ClientCert == "verify-full") {
			fault("listen has the Unix socket %s, whose clients use no TLS, but tls.client_cert is %s: remove the socket, or set client_cert: optional", a, c.TLS.ClientCert)
		}
	}
}

// validateAddress checks where Postgres is.
func (u *Upstream) validateAddress(fault Fault) {
	const where = "upstream.address"
	if len(u.Address) == 0 {
		fault("%s is empty: name the server, e.g. 127.0.0.1:5432", where)
	}
	seen := map[string]bool{}
	for _, address := range u.Endpoints() {
		switch {
		case seen[address]:
			fault("%s has %s twice: remove one", where, address)
		case Address(address).Network() == "tcp", len(address) > maxPath:
			checkSocket(fault, where, Address(address))
		case !isPort(strings.TrimPrefix(filepath.Base(address), socketName)):
			fault("%s is %q: use the directory of Postgres's socket, or the socket in it, e.g. /run/postgresql/.s.PGSQL.5432", where, address)
		case u.TLS.Enabled():
			fault("%s is the Unix socket %s, where Postgres speaks no TLS: set upstream.tls.mode: disable, or use host:port", where, address)
		}
		seen[address] = true
	}
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// checkMembers checks the addresses of the members of a lease service. tls is the setting that says whether they use
// TLS.
func checkMembers(fault Fault, where string, all Addresses, example, tls string) {
	if len(all) == 0 {
		fault("%s is empty: name at least one, e.g. %s", where, example)
	}
	for i, a := range all {
		host, port, err := net.SplitHostPort(string(a))
		switch {
		case strings.Contains(string(a), "://"):
			fault("%s is %q: use host:port, and set %s", where, string(a), tls)
		case err != nil || host == "" || strings.ContainsAny(host, "/ "):
			fault("%s is %q: use host:port, e.g. %s, and name several as a list", where, string(a), example)
		case !isPort(port):
			fault("%s is %q: the port must be a number from 1 to 65535", where, string(a))
		case slices.Contains(all[:i], a):
			fault("%s has %q twice: name each one once", where, string(a))
		}
	}
}
