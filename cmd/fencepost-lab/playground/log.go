package playground

import (
	"fmt"
	"sync"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

// proxyLog is where a proxy writes its log.
type proxyLog struct {
	proxy string
	line  func(proxy string, l scratch.LogLine)

	mu   sync.Mutex
	rest []byte // of a line that is not complete
}

// Write implements io.Writer.
func (p *proxyLog) Write(text []byte) (int, error) {
	p.mu.Lock()
	lines, rest := scratch.LogLines(append(p.rest, text...))
	p.rest = append([]byte(nil), rest...)
	p.mu.Unlock()
	for _, l := range lines {
		p.line(p.proxy, l)
	}
	return len(text), nil
}

// logged takes in a line of a proxy's log.
func (l *Lab) logged(proxy string, line scratch.LogLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if line.Resource == "" || line.Resource != l.mu.scene.resource {
		return
	}
	if line.Logger == "audit" {
		l.mu.lastID++
		l.mu.audit = append(l.mu.audit, Audit{
			ID: l.mu.lastID, At: l.nowLocked(), Message: line.Msg, Worker: line.Worker, Epoch: line.Epoch,
			CurrentWorker: line.CurrentWorker, CurrentEpoch: line.CurrentEpoch, SQLState: line.SQLState, Statement: line.Statement, Repeated: line.Repeated,
		})
		if n := len(l.mu.audit); n > 2*shownAudit {
			l.mu.audit = append([]Audit(nil), l.mu.audit[n-shownAudit:]...)
		}
		l.changedLocked()
		return
	}
	if text := describe(line); text != "" {
		l.sayLocked("fencepost", proxy, false, "%s", text)
		l.changedLocked()
	}
}

// describe says what a line means, "" if the page does not show it.
func describe(l scratch.LogLine) string {
	name := nameOf(l.Worker)
	switch {
	case l.Msg == "takeover" && l.From != "":
		return fmt.Sprintf("%s is granted epoch %d, and takes over from %s", name, l.Epoch, nameOf(l.From))
	case l.Msg == "granted", l.Msg == "takeover":
		return fmt.Sprintf("%s is granted epoch %d", name, l.Epoch)
	}
	switch l.Msg {
	case "lease reacquired under the same epoch":
		return fmt.Sprintf("%s has the lease again, under the same epoch %d", name, l.Epoch)
	case "lease lost":
		return fmt.Sprintf("the lease of %s is lost", name)
	case "terminated a backend that blocked a grant":
		return fmt.Sprintf("a transaction of the old epoch has outlasted the grace (%s): its backend is ended", l.State)
	case "released":
		if l.Reason == "silence" {
			return fmt.Sprintf("%s gives no sign of life: its lease is released", name)
		}
		return fmt.Sprintf("the lease of %s is released", name)
	}
	return ""
}
