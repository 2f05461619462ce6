// Package handshake relays what a client and the server say to each other in the startup of a session: the
// authentication, and what the server says about itself up to its first ReadyForQuery. It also asks the server
// which backend it has given the session.
package handshake

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/wire"
	"github.com/fencepost/fencepost/upstream"
)

// ErrOver ends a startup without another message to the client, because the client already
// has an error, or because it has gone.
var ErrOver = errors.New("session over")

// ErrNoAnswer says that the client did not answer the server's authentication
// request.
var ErrNoAnswer = errors.New("no answer to the authentication request")

// Handshake reads whole messages of both sides during the startup. What it writes to the client is sent before
// it waits for the client, and by Flush: as from the server itself, the client gets all that follows its authentication
// together.
type Handshake struct {
	client, server         netloop.Conn
	fromClient, fromServer *bufio.Reader
	toClient               *bufio.Writer
	message                []byte // the last message of the server
	refused                func(wire.ServerError)
	log                    func() *zap.Logger
}

// bufferSize is enough for what a server mostly says at once, and a client. Much of what a login costs the garbage
// collector depends on it.
const bufferSize = 1 << 10

// New returns the handshake of a client with a server. It calls refused with the error by which the server
// refuses the client.
func New(client, server netloop.Conn, refused func(wire.ServerError), log func() *zap.Logger) *Handshake {
	to := bufio.NewWriterSize(client, bufferSize)
	return &Handshake{
		client: client, server: server, toClient: to, refused: refused, log: log,
		fromClient: bufio.NewReaderSize(flushing{client, to}, bufferSize), fromServer: bufio.NewReaderSize(server, bufferSize),
	}
}

// flushing flushes to before each read.
type flushing struct {
	from io.Reader
	to   *bufio.Writer
}

func (f flushing) Read(p []byte) (int, error) {
	if err := f.to.Flush(); err != nil {
		return 0, err
	}
	return f.from.Read(p)
}

// maxStartupReply bounds a message of the server before its first ReadyForQuery.
const maxStartupReply = 1 << 20

// serverMessage reads one message of the server. msg is valid until the next call.
func (h *Handshake) serverMessage() (typ byte, msg []byte, err error) {
	head, err := h.fromServer.Peek(wire.HeaderLen)
	if err != nil {
		return 0, nil, ErrOver
	}
	f, _, err := wire.PeekFrame(head)
	if err != nil || f.Size > maxStartupReply {
		return 0, nil, fmt.Errorf("%w in its startup", protocol.ErrUnexpectedReply)
	}
	if cap(h.message) < f.Size {
		h.message = make([]byte, f.Size)
	}
	h.message = h.message[:f.Size]
	if _, err := io.ReadFull(h.fromServer, h.message); err != nil {
		return 0, nil, ErrOver
	}
	return f.Type, h.message, nil
}

// SendStartup sends the server the client's startup packet.
func (h *Handshake) SendStartup(version uint32, params []string) error {
	if _, err := h.server.Write(wire.AppendStartup(nil, version, params)); err != nil {
		return ErrOver
	}
	return nil
}

// Send sends the client messages of Fencepost's own.
func (h *Handshake) Send(messages []byte) error {
	if _, err := h.toClient.Write(messages); err != nil {
		return ErrOver
	}
	return h.Flush()
}

// Flush sends the client what was relayed to it and is not sent yet.
func (h *Handshake) Flush() error {
	if err := h.toClient.Flush(); err != nil {
		return ErrOver
	}
	return nil
}

// ClientHasSent reports whether the client has sent something that was not read or relayed.
func (h *Handshake) ClientHasSent() bool {
	return h.fromClient.Buffered() > 0 || h.client.Unread() > 0
}

// ReadAhead moves the bytes of the client that were read ahead to the start of buf, and returns their number.
func (h *Handshake) ReadAhead(buf []byte) int { return readAhead(h.fromClient, buf) }

// ReadAheadOfServer is ReadAhead for the bytes of the server.
func (h *Handshake) ReadAheadOfServer(buf []byte) int { return readAhead(h.fromServer, buf) }

func readAhead(r *bufio.Reader, buf []byte) int {
	n, _ := r.Read(buf[:r.Buffered()]) // from the reader's buffer alone, which cannot fail
	return n
}

// RelayUntilReady relays what the server sends until its first ReadyForQuery, and returns what it says about itself. It
// does not relay the cancel key and the ReadyForQuery. It refuses a server that is not the primary.
func (h *Handshake) RelayUntilReady(primary upstream.Primary) (Backend, error) {
	var b Backend
	for {
		typ, msg, err := h.serverMessage()
		if err != nil {
			return b, err
		}
		switch typ {
		case 'Z':
			return b, nil
		case 'K':
			b.setKey(msg[wire.HeaderLen:])
			continue
		case 'E':
			return b, h.refusedByServer(msg)
		case 'S':
			if err := b.addParameter(msg[wire.HeaderLen:], primary); err != nil {
				return b, err
			}
		}
		if _, err := h.toClient.Write(msg); err != nil {
			return b, ErrOver
		}
	}
}

// refusedByServer relays the error with which the server refuses the connection, and counts and logs it.
func (h *Handshake) refusedByServer(msg []byte) error {
	e, _ := wire.DecodeError(msg[wire.HeaderLen:])
	h.refused(e)
	_, _ = h.toClient.Write(msg) // the connection ends either way
	_ = h.toClient.Flush()
	return ErrOver
}

// Ask runs a statement of Fencepost's own during the startup, which returns no rows. failed is an error of the server
// that did not end the connection.
func (h *Handshake) Ask(sql string) (failed *wire.ServerError, err error) {
	if _, err := h.server.Write(wire.AppendQuery(nil, []byte(sql))); err != nil {
		return nil, ErrOver
	}
	_, failed, err = h.readAnswer()
	return failed, err
}
