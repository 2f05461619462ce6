package protocol

import (
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/wire"
)

// settings are what is known of the server's settings.
type settings struct {
	reading sqltext.Settings // how it reads a text
	utf8    bool             // client_encoding is UTF8
	// readOnly: default_transaction_read_only is on, as the server has reported or confirmed.
	readOnly bool
	// unsure: the open block may be READ WRITE.
	unsure           bool
	reportedReadOnly bool // the default_transaction_read_only that was last reported to the client
	clientDefault
	shown shown
	// defined: the server knows Fencepost's parameters. It forgets none of them.
	defined bool
	// renamed is the application_name that was reported last, "" if that is not new.
	renamed string
}

// clientDefault is the client's own default_transaction_read_only.
type clientDefault struct {
	start  bool // at the start of the session
	now    bool // what it would be now without Fencepost
	before bool // what it was before the block in hand
}

// shown are the values of Fencepost's parameters that the server has.
type shown struct {
	valid                  bool
	role, epochs, resource string
	inBlock                bool // they were set in the open block, so its ROLLBACK undoes them
}

// overwrites follows a SET of the client's.
func (has *shown) overwrites(st *sqltext.Statement) {
	if st.Name == "resource" {
		has.resource = st.Value
	} else {
		*has = shown{}
	}
}

// begin takes the parameters that the server reported at the startup.
func (c *settings) begin(parameters [][]byte) {
	c.reading = sqltext.DefaultSettings
	for _, body := range parameters {
		c.followParameter(body)
	}
	c.renamed = ""
	c.clientDefault = clientDefault{c.readOnly, c.readOnly, c.readOnly}
	c.reportedReadOnly = c.readOnly
}

// Carried is what is known of a relayed session at rest, and what a session that goes on in its place begins with.
type Carried struct {
	Reading  sqltext.Settings   // how the server reads a text
	UTF8     bool               // client_encoding is UTF8
	ReadOnly bool               // default_transaction_read_only is on, as the client knows
	Start    bool               // the same at the start of the session
	Role     string             // as last reported to the client, "" if nothing was
	Epoch    string             // the same
	Prepared []CarriedStatement // those that show or set parameters of Fencepost's
}

// CarriedStatement is a prepared statement.
type CarriedStatement struct{ Name, Text []byte }

// Carried returns what a session needs that goes on in place of this one, which is Portable.
func (s *Session) Carried() Carried {
	c := &s.settings
	all := Carried{Reading: c.reading, UTF8: c.utf8, ReadOnly: c.readOnly, Start: c.clientDefault.start, Role: s.reported.role, Epoch: s.reported.epoch}
	for name, e := range s.fenceStatements {
		all.Prepared = append(all.Prepared, CarriedStatement{[]byte(name), []byte(e.text)})
	}
	return all
}

// take takes what another session has carried.
func (c *settings) take(from Carried) {
	c.reading, c.utf8, c.readOnly = from.Reading, from.UTF8, from.ReadOnly
	c.clientDefault = clientDefault{from.Start, from.ReadOnly, from.ReadOnly}
}

// followParameter takes a ParameterStatus, and reports whether it is that of default_transaction_read_only.
func (c *settings) followParameter(body []byte) (ofMode bool) {
	name, value, ok := wire.DecodeParameterStatus(body)
	if !ok {
		return false
	}
	switch name {
	case "standard_conforming_strings":
		c.reading.StandardConformingStrings = value == "on"
	case "client_encoding":
		c.reading.SafeEncoding, c.utf8 = sqltext.SafeEncoding(value), value == "UTF8"
	case "application_name":
		c.renamed = value
	case "default_transaction_read_only":
		c.readOnly = value == "on"
		return true
	}
	return false
}

// followStatement follows a statement of the client's that has succeeded.
func (c *settings) followStatement(st *sqltext.Statement) {
	switch {
	case st.Does(sqltext.SetsDefaultReadOnly):
		c.clientDefault.now = true
	case st.Does(sqltext.SetsDefaultReadWrite):
		c.clientDefault.now = false
	case st.Does(sqltext.RestoresDefault):
		c.clientDefault.now = c.clientDefault.start
	}
}

// followTag follows a CommandComplete.
func (c *settings) followTag(tag string) {
	switch tag {
	case "DISCARD ALL", "RESET":
		c.shown = shown{}
	case "ROLLBACK":
		c.clientDefault.now = c.clientDefault.before
		if c.shown.inBlock {
			c.shown = shown{}
		}
	}
}
