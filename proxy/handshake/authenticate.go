package handshake

import (
	"encoding/binary"
	"errors"
	"io"
	"net"

	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/wire"
)

// maxAuthMessage bounds a message of the client during the authentication
// (PG_MAX_AUTH_TOKEN_LENGTH).
const maxAuthMessage = 65535

// Authenticate relays the authentication until the server accepts the client.
func (h *Handshake) Authenticate() error {
	for {
		typ, msg, err := h.serverMessage()
		if err != nil {
			return err
		}
		ask := authNone
		if typ == 'R' && len(msg) >= wire.HeaderLen+4 {
			ask = binary.BigEndian.Uint32(msg[wire.HeaderLen:])
		}
		stripped := false
		if ask == authSASL {
			msg, stripped = h.offer(msg)
		}
		switch {
		case typ == 'E':
			return h.refusedByServer(msg)
		case ask == authGSS, ask == authSSPI:
			return refusals.GSS
		}
		if _, err := h.toClient.Write(msg); err != nil {
			return ErrOver
		}
		switch ask {
		case authNone: // a notice, or NegotiateProtocolVersion
		case authOK:
			return nil
		case authSASLFinal: // the server continues without an answer
		default:
			if err := h.relayAnswer(stripped); err != nil {
				return err
			}
		}
	}
}

// offer returns the server's list of SASL mechanisms as the client gets it.
//
// Channel binding ties the authentication to the certificate that the client sees. It can be
// relayed only if that is the server's own certificate, which Fencepost may have been given.
// Otherwise offer removes it from the list, and stripped is true if the list had it.
func (h *Handshake) offer(msg []byte) (offered []byte, stripped bool) {
	if pgtls.SameServer(h.client, h.server) {
		return msg, false
	}
	const head = wire.HeaderLen + 4
	offered, stripped = pgtls.WithoutBinding(append([]byte(nil), msg[:head]...), msg[head:])
	return wire.Sized(offered), stripped
}

// The authentication requests of a server that the relay distinguishes.
const (
	authOK        = 0
	authGSS       = 7
	authSSPI      = 9
	authSASL      = 10
	authSASLFinal = 12
	authNone      = ^uint32(0) // not an authentication request
)

// relayAnswer forwards one answer of the client to the server. stripped says that it answers
// an offer from which channel binding was removed.
func (h *Handshake) relayAnswer(stripped bool) error {
	head, err := h.fromClient.Peek(wire.HeaderLen)
	if err != nil {
		return noAnswer(err)
	}
	f, _, err := wire.PeekFrame(head)
	if err != nil || f.Type != 'p' || f.Size > maxAuthMessage+wire.HeaderLen {
		return refusals.Protocol("expected password response, got message type %d", head[0])
	}
	msg := make([]byte, f.Size)
	if _, err := io.ReadFull(h.fromClient, msg); err != nil {
		return noAnswer(err)
	}
	if stripped && pgtls.MissesBinding(msg[wire.HeaderLen:]) {
		return refusals.Unbound
	}
	if _, err := h.server.Write(msg); err != nil {
		return ErrOver
	}
	return nil
}

// noAnswer returns the error of a startup in which reading the client's answer failed with
// err.
func noAnswer(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return ErrNoAnswer
	}
	return ErrOver
}
