package proxy

import (
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/wire"
)

// Observed describes a session to its Observer: what the bytes on the server's side do not
// show.
type Observed struct {
	Version     int  // of the server
	Fenced      bool // false: a connection without a resource, which may only read
	Fence       int32
	Resource    string // of the startup
	Incarnation string // of its candidacy
	ProvenReads bool   // a leader's proven reads go unchecked
	Database    string
	User        string
	// Settings are the parameters that the server has reported.
	Settings map[string]string
}

// Observer watches the server's side of one session, from the end of its
// authentication on. It is for tests and for debugging. Its methods must not
// block; several goroutines may call them.
type Observer interface {
	// Sent is called with the bytes for the server before they are sent. An error
	// ends the session, and nothing is sent.
	Sent(b []byte) error
	// Received is called with the bytes from the server before anything else is done with
	// them.
	Received(b []byte)
	// Rejoined is called when the session has left its candidacy for another one of the same
	// worker, before anything is sent for that.
	Rejoined(fence int32, incarnation string)
	// Named is called when the client has named a resource besides that of its startup, before
	// anything is sent for that.
	Named(resource string, fence int32, incarnation string)
	// Registered is called when the registry has confirmed the entry of the session's
	// backend, and Unregistered before that entry is deleted.
	Registered(epoch int64)
	Unregistered()
}

// nobody is the observer of a session that is not observed.
type nobody struct{}

func (nobody) Sent([]byte) error           { return nil }
func (nobody) Received([]byte)             {}
func (nobody) Rejoined(int32, string)      {}
func (nobody) Named(string, int32, string) {}
func (nobody) Registered(int64)            {}
func (nobody) Unregistered()               {}

// observe gives the session its observer, unless the session is relayed without any check, or
// without one while its worker does not lead.
func (x *session) observe(c protocol.Config) {
	if x.srv.cfg.Observe == nil || c.Mode == protocol.ModePassing || c.Tables || !fencing.Checking {
		return
	}
	o := Observed{
		Version: int(c.Version), Fenced: c.Mode == protocol.ModeFenced, Fence: c.Fence, Resource: c.Resource, Incarnation: c.Incarnation,
		ProvenReads: c.ProvenReads, Database: x.start.database, User: x.start.user, Settings: map[string]string{},
	}
	for _, body := range x.backend.parameters {
		if name, value, ok := wire.DecodeParameterStatus(body); ok {
			o.Settings[name] = value
		}
	}
	x.observer = x.srv.cfg.Observe(o)
}
