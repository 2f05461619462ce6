package machinetest

import (
	"bytes"
	"errors"
	"fmt"
)

// Backend is a session with a real server, from the end of its startup on.
type Backend interface {
	// Send sends b to the server, or does nothing if the server has ended the session.
	Send(b []byte)
	// Answers returns all that the server says until it waits for its client or has ended the
	// session, as whole messages.
	Answers() ([]byte, error)
	// HangUp says that nothing more will be sent.
	HangUp()
}

// Record lets a new machine and a server take turns: the machine takes a part of what the client
// sends, then all that the server answers to that, until both wait for the client. No proxy, and
// no chance, decides who comes first. Record returns the transcript, which Play repeats, and what
// the client got, with the placeholder in the names of the checks.
func Record(s Session, server Backend, parts [][]byte) (text string, toClient []byte, err error) {
	x := newPlayer(s)
	x.send = server.Send
	prepare := x.m.AppendPrepare(nil)
	x.learn(prepare)
	server.Send(prepare)
	answers, err := server.Answers()
	if err == nil && !bytes.HasPrefix(answers, []byte{'1'}) {
		err = fmt.Errorf("the server answers %q", answers)
	}
	if err != nil {
		return "", nil, fmt.Errorf("prepare the checks: %w", err)
	}
	x.begin(s)
	for _, part := range parts {
		if x.over {
			break
		}
		if err := x.take(Input{Side: Client, Bytes: part}); err != nil {
			return "", nil, err
		}
		if err := x.hear(server); err != nil {
			return "", nil, err
		}
	}
	server.HangUp()
	if err := x.hear(server); err != nil {
		return "", nil, err
	}
	text = x.text.String()
	return text, append(x.down, x.fatal...), Repeat(text)
}

// hear takes what the server answers, and answers to what the machine then sends.
func (x *player) hear(server Backend) error {
	for !x.over {
		b, err := server.Answers()
		if err != nil {
			return err
		}
		if len(b) == 0 {
			if x.stuck {
				return errors.New("the machine and the server wait for each other")
			}
			return nil
		}
		if err := x.take(Input{Side: Server, Bytes: b}); err != nil {
			return err
		}
	}
	return nil
}

// Repeat plays a transcript, and returns an error if the machine does not say the same.
func Repeat(text string) error {
	session, inputs, err := Parse(text)
	if err != nil {
		return err
	}
	got, _, _, err := Play(session, inputs)
	if err == nil && got != text {
		err = fmt.Errorf("the transcript\n%s\nis repeated as\n%s", text, got)
	}
	return err
}
