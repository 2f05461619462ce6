package startup

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/wire"
)

// Request is the content of a client's startup packet.
type Request struct {
	Version uint32
	Params  []string // name, value, …: those that the server gets
	// User and Database are cut to the length of a name, as the server does: two names that
	// differ only after that mean one database, and get one lease.
	User, Database string
	Own            Own
	// Began is when the client's first byte was read. That is later than the connection was
	// accepted, so that what the client had sent on another connection before is read by then.
	Began time.Time
}

// Client describes the client for the log of refused connections. s is nil if its packet was not read.
func (s *Request) Client(from net.Addr) refusals.Client {
	c := refusals.Client{Addr: from}
	if s != nil {
		c.User, c.Database = s.User, s.Database
	}
	return c
}

// ApplicationName returns the application_name that the client has asked for, "" if none. One
// in the parameter options counts only without a parameter of its own, and the last one
// counts, as in PostgreSQL.
func (s *Request) ApplicationName() (name string) {
	for i := len(s.Params) - 2; i >= 0; i -= 2 {
		if isApplicationName(s.Params[i]) {
			return s.Params[i+1]
		}
	}
	for i := 0; i < len(s.Params); i += 2 {
		if s.Params[i] == "options" {
			_, names := splitOptions(s.Params[i+1], isApplicationName)
			if len(names) > 0 {
				name = names[len(names)-1]
			}
		}
	}
	return name
}

// ProtocolOptions returns the names of the options of the protocol that the client has asked for.
func (s *Request) ProtocolOptions() (options []string) {
	for i := 0; i < len(s.Params); i += 2 {
		if strings.HasPrefix(s.Params[i], "_pq_.") {
			options = append(options, s.Params[i])
		}
	}
	return options
}

// errLayout refuses a startup packet that does not consist of names and values.
var errLayout = refusals.Protocol("invalid startup packet layout: expected terminator as last byte")

// Packet returns the startup packet that Parse reads, without the parameters that were removed.
func (s *Request) Packet() []byte { return wire.AppendStartup(nil, s.Version, s.Params) }

// Parse reads a packet of Packet.
func Parse(packet []byte) (*Request, error) {
	if len(packet) < 8 {
		return nil, errLayout
	}
	return parseStartup(binary.BigEndian.Uint32(packet[4:]), packet[8:])
}

// parseStartup reads the body of a startup packet.
func parseStartup(version uint32, body []byte) (*Request, error) {
	s := &Request{Version: version, Own: Own{WorkerTimeout: -1}}
	for {
		name, rest, ok := wire.CString(body)
		if !ok {
			return nil, errLayout
		}
		if len(name) == 0 {
			if len(rest) > 0 {
				return nil, errLayout
			}
			break
		}
		value, rest, ok := wire.CString(rest)
		if !ok {
			return nil, errLayout
		}
		if err := s.add(string(name), string(value)); err != nil {
			return nil, err
		}
		body = rest
	}
	if s.User == "" {
		return nil, &fencing.Refusal{SQLState: "28000", Message: "no PostgreSQL user name specified in startup packet", Verbatim: true}
	}
	if s.Database == "" {
		s.Database = s.User
	}
	return s, nil
}

// add takes one parameter.
func (s *Request) add(name, value string) error {
	switch {
	case name == "user":
		s.User = wire.CutName(value)
	case name == "database":
		s.Database = wire.CutName(value)
	case name == "options":
		kept, own := splitOptions(value, isOwn)
		for i := 0; i < len(own); i += 2 {
			if err := s.Own.set(own[i], own[i+1]); err != nil {
				return err
			}
		}
		value = kept
	case name == "replication":
		if err := refuseReplication(value); err != nil {
			return err
		}
	case isOwn(name):
		return s.Own.set(name, value)
	}
	s.Params = append(s.Params, name, value)
	return nil
}

// refuseReplication returns the refusal of a value of the replication parameter, nil if
// it asks for no replication. Postgres takes any prefix of true, false, yes, no, on and
// off that is not ambiguous (parse_bool), and "database" as it is.
func refuseReplication(value string) error {
	v := strings.ToLower(value)
	is := func(word string, least int) bool { return len(v) >= least && strings.HasPrefix(word, v) }
	switch {
	case is("false", 1), is("no", 1), is("off", 2), v == "0":
		return nil
	case value == "database", is("true", 1), is("yes", 1), is("on", 2), v == "1":
		return fencing.ReplicationRefusal
	default:
		return &fencing.Refusal{
			SQLState: "22023",
			Message:  fmt.Sprintf("invalid value for parameter \"replication\": \"%s\"", fencing.ASCII(value)),
			Hint:     `Valid values are: "false", 0, "true", 1, "database".`,
			Verbatim: true,
		}
	}
}
