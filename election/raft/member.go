package raft

import (
	"errors"
	"fmt"
	"strings"

	hraft "github.com/hashicorp/raft"
)

// Member is a node of the cluster: a name, and the one directory that was made for it. A node that
// has another directory is another member, whatever its name.
type Member struct {
	Name    string `json:"name"`
	Disk    string `json:"disk,omitempty"` // the random part of the identity of its directory
	Address string `json:"address,omitempty"`
	// Voter: the node counts for the quorum. One that was added votes when it has caught up.
	Voter  bool `json:"voter,omitempty"`
	Leader bool `json:"leader,omitempty"`
	// Index is up to which entry all was committed when the leader, which alone has it, said so.
	Index uint64 `json:"index,omitempty"`
}

// id returns what Raft knows the member by.
func (m Member) id() hraft.ServerID { return hraft.ServerID(m.Name + "/" + m.Disk) }

// recorded is the address of the member in Raft's log. It is none: where a member is, the configuration
// says (see addresses), so that it can have another address, and another member its former one.
func (m Member) recorded() hraft.ServerAddress { return hraft.ServerAddress(m.id()) }

// named returns the name and the directory of what Raft knows by this id. The id of a directory has
// no slash.
func named(id hraft.ServerID) Member {
	i := strings.LastIndexByte(string(id), '/')
	if i < 0 {
		return Member{Name: string(id)}
	}
	return Member{Name: string(id)[:i], Disk: string(id)[i+1:]}
}

// addresses are those of the configuration. Raft's log has none.
type addresses map[string]string

// ServerAddr implements raft.ServerAddressProvider. The address says which directory is meant, because
// stream.Dial gets nothing else.
func (a addresses) ServerAddr(id hraft.ServerID) (hraft.ServerAddress, error) {
	m := named(id)
	if address := a[m.Name]; address != "" {
		return hraft.ServerAddress(m.Disk + "@" + address), nil
	}
	return "", fmt.Errorf("the node %s is not among the peers of the configuration", m.Name)
}

// dialed returns the directory and the address of what ServerAddr has returned. Raft's library falls
// back to the address in its log, which is none, if ServerAddr has failed.
func dialed(address hraft.ServerAddress) (disk, to string, err error) {
	disk, to, ok := strings.Cut(string(address), "@")
	if !ok {
		return "", "", errors.New("the node is not among the peers of the configuration")
	}
	return disk, to, nil
}
