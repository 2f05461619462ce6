// Package upgrade replaces a running process by a new one, which runs the same program file with the same arguments and
// inherits the listening sockets. A socket that both processes have accepts connections as long as one of them has it, so none
// is refused meanwhile.
//
//	old process (Successor)                  new process (Predecessor)
//	starts it, with the sockets  ---------->  reads its configuration, and takes the sockets that it needs
//	Offer                        ---------->  tests what it needs, and what the offer names
//	                             <----------  Report, or why it cannot take over
//	lets it serve                ---------->  accepts connections
//	                             <----------  serves
//	accepts no more, and drains
//	passes sessions              ---------->  serves them (sessions.go)
//	                             <----------  cancel requests of its clients, which it delivers
//	ends                         ---------->  Ended
//
// Until the new process serves, the old one can give up and go on as if nothing had happened. The two talk through a pair of
// pipes, whose end says that the other process has ended.
package upgrade

import (
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/fencepost/fencepost/internal/faults"
)

// variable is the environment variable that tells a process that it was started to replace another one. Its value is a JSON list
// of the names of the sockets, whose descriptors begin at firstSocket.
const variable = "FENCEPOST_INHERITED_SOCKETS"

// The descriptors that the new process inherits after the standard streams.
const (
	fromOld = iota + 3
	toOld
	firstSocket
)

// Offer is what the old process says of itself.
type Offer struct {
	// Databases are those in which workers have used it.
	Databases []string `json:"databases"`
}

// Report is what the new process says when it is able to serve.
type Report struct {
	// Taken are the sockets that it has taken, as indices of those of Start.
	Taken []int `json:"taken"`
	// Faults are what it has found wrong. They do not keep it from serving.
	Faults []faults.Active `json:"faults"`
}

// message is what one process says to the other: one of its fields is set.
type message struct {
	Offer   *Offer  `json:"offer,omitempty"`
	Report  *Report `json:"report,omitempty"`
	Failed  string  `json:"failed,omitempty"`
	Serve   bool    `json:"serve,omitempty"`
	Serving bool    `json:"serving,omitempty"`
	// Cancel is said by the new process, and again by the old one when it has done that.
	Cancel *cancel `json:"cancel,omitempty"`
}

// cancel is a cancel request that a client of the old process has sent to the new one. ID is different for each.
type cancel struct {
	ID     uint64 `json:"id"`
	PID    uint32 `json:"pid,omitempty"`
	Secret []byte `json:"secret,omitempty"`
}

// channel is one process' side of the conversation.
type channel struct {
	in, out *os.File
	decoder *json.Decoder

	sending sync.Mutex
	encoder *json.Encoder
	broken  error // why nothing can be sent any more
}

// sendPatience is how long the other process, which may be frozen, may take to read what fills the pipe.
const sendPatience = time.Second

func newChannel(in, out *os.File) *channel {
	return &channel{in: in, out: out, decoder: json.NewDecoder(in), encoder: json.NewEncoder(out)}
}

func (c *channel) send(m message) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.broken == nil {
		_ = c.out.SetWriteDeadline(time.Now().Add(sendPatience)) // which pipes have
		c.broken = c.encoder.Encode(m)
	}
	return c.broken
}

// receive waits for a message. io.EOF means that the other process has ended, or has given up.
func (c *channel) receive() (m message, err error) {
	err = c.decoder.Decode(&m)
	return m, err
}

func (c *channel) close() {
	_ = c.in.Close()
	_ = c.out.Close()
}
