package protocol

// Owes reports whether the server is known to be working for the client. It is
// not while it waits for the client: for COPY data, for the rest of a message,
// or for the Sync or Flush without which it need not send what it has answered.
func (m *Machine) Owes() bool {
	if m.copy.reading() {
		return false
	}
	asked := m.pendingReplies.asked
	if whole := !m.up.body.inside() || m.pendingReplies.call < m.pendingReplies.len(); whole {
		asked = max(asked, m.pendingReplies.call)
	}
	return m.pendingReplies.certainIn(asked)
}
