package config

import (
	"fmt"
	"net"
	"strings"

	"github.com/fencepost/fencepost/internal/files"
)

// Raft configures the provider "raft". A proxy that has a directory is a node, whose name is its
// proxy.id. One that has none sends its requests to the nodes.
type Raft struct {
	Peers  Peers  `yaml:"peers"`
	Dir    string `yaml:"dir"`
	Listen string `yaml:"listen"`
	files.TLSClient
}

// Peer is a node of Raft.
type Peer struct{ Name, Address string }

// UnmarshalText parses a node, which is written as name=host:port.
func (p *Peer) UnmarshalText(text []byte) error {
	name, address, ok := strings.Cut(string(text), "=")
	if !ok || name == "" {
		return fmt.Errorf("invalid node %q: use name=host:port, e.g. proxy-1=10.0.0.1:6434", text)
	}
	*p = Peer{name, address}
	return nil
}

func (p Peer) String() string { return p.Name + "=" + p.Address }

// Peers are the nodes, written as Addresses are.
type Peers []Peer

// UnmarshalText parses nodes in one line.
func (l *Peers) UnmarshalText(text []byte) error {
	list, err := inOneLine[Peer](string(text))
	*l = list
	return err
}

func (l Peers) String() string { return oneLine(l) }

// Addresses returns the addresses by name.
func (l Peers) Addresses() map[string]string {
	all := make(map[string]string, len(l))
	for _, p := range l {
		all[p.Name] = p.Address
	}
	return all
}

// ValidateRaft checks the settings of the provider "raft".
func ValidateRaft(c *Config, fault Fault) {
	r := c.Election.Raft
	if len(r.Peers) == 0 {
		fault("election.raft.peers is empty: name all nodes, e.g. [proxy-1=10.0.0.1:6434, proxy-2=10.0.0.2:6434, proxy-3=10.0.0.3:6434]")
	}
	r.Peers.validate(fault)
	if r.CAFile == "" || r.CertFile == "" || r.KeyFile == "" {
		fault("election.raft.ca_file, cert_file and key_file must all be set: nodes and proxies know each other by their certificates")
	}
	_, isPeer := r.Peers.Addresses()[c.Proxy.ID]
	switch {
	case r.Dir == "" && r.Listen != "":
		fault("election.raft.listen is set, but no dir: a proxy without one is no node. Set election.raft.dir too, or remove listen")
	case r.Dir != "" && c.Proxy.ID == "":
		fault("election.raft.dir is set, but proxy.id is empty: set it to the name of this node in election.raft.peers")
	case r.Dir != "" && !isPeer && len(r.Peers) > 0:
		fault("election.raft.peers does not have this proxy, %s, which is a node because election.raft.dir is set: name it there, or remove dir", c.Proxy.ID)
	}
	if r.Listen != "" {
		checkAddress(fault, "election.raft.listen", r.Listen)
	}
}

func (l Peers) validate(fault Fault) {
	names, addresses := map[string]bool{}, map[string]bool{}
	for _, p := range l {
		host, port, err := net.SplitHostPort(p.Address)
		switch {
		case err != nil, host == "", strings.ContainsAny(host, "/ "), !isPort(port):
			fault("election.raft.peers has %q: use name=host:port, e.g. proxy-1=10.0.0.1:6434", p)
		case names[p.Name]:
			fault("election.raft.peers has the node %s twice", p.Name)
		case addresses[p.Address]:
			fault("election.raft.peers has the address %s twice", p.Address)
		}
		names[p.Name], addresses[p.Address] = true, true
	}
}
