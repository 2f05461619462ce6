package protocol

import (
	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing/sqltext"
)

// settings are those of the server that say what a text means. They begin with what the
// server reported at the startup, and change with each report of one of them, which comes
// at the latest with the ReadyForQuery after the change.
type settings struct {
	current sqltext.Settings
	changes uint64 // reports of any of them, also of the value that it had
	// readOnly: transactions are read-only by default. It says nothing of a text.
	readOnly bool
	utf8     bool // client_encoding is UTF8
}

// newSettings begins with the bodies of the server's ParameterStatus messages.
func newSettings(parameters [][]byte) settings {
	s := settings{current: sqltext.Settings{StandardConformingStrings: true, SafeEncoding: true}}
	for _, body := range parameters {
		s.learn(body)
	}
	return s
}

// learn follows a ParameterStatus message with this body.
func (s *settings) learn(body []byte) {
	name, value, ok := wire.DecodeParameterStatus(body)
	if !ok {
		return
	}
	switch name {
	case "standard_conforming_strings":
		s.changes++
		s.current.StandardConformingStrings = value == "on"
	case "client_encoding":
		s.changes++
		s.current.SafeEncoding, s.utf8 = sqltext.SafeEncoding(value), value == "UTF8"
	case "default_transaction_read_only":
		s.readOnly = value == "on"
	}
}

// reading is the settings under which the server reads sql if it comes now.
// Text that means the same under every setting needs none of them; other text
// is taken for the worst while a setting may be changing.
func (m *Machine) reading(sql []byte) sqltext.Settings {
	switch {
	case !sensitive(sql):
		return sqltext.DefaultSettings
	case m.unsettled(sql):
		return sqltext.Settings{}
	default:
		return m.settings.current
	}
}

// unsettled reports whether sql means what the server's settings say, and the
// server may have changed them without having said so yet: it does with
// ReadyForQuery.
func (m *Machine) unsettled(sql []byte) bool {
	return (m.batch.open() || !m.pendingReplies.empty()) && sensitive(sql)
}

// sensitive reports whether the meaning of sql depends on any setting.
func sensitive(sql []byte) bool { return sqltext.DependenceOf(sql) != sqltext.OnNothing }
