package playground

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
)

// logLine is a line of a proxy's log.
type logLine struct {
	Logger   string `json:"logger"`
	Msg      string `json:"msg"`
	Resource string `json:"resource"`
	Worker   string `json:"worker"`
	Epoch    int64  `json:"epoch"`
	From     string `json:"from"`
	Reason   string `json:"reason"` // why a lease was released
	State    string `json:"state"`  // of a backend that was terminated

	// Only in the audit log:
	CurrentEpoch  int64  `json:"current_epoch"`
	CurrentWorker string `json:"current_worker"`
	SQLState      string `json:"sqlstate"`
	Statement     string `json:"statement"`
	Repeated      int64  `json:"repeated"`
}

// proxyLog is where a proxy writes its log.
type proxyLog struct {
	proxy string
	line  func(proxy string, l logLine)

	mu   sync.Mutex
	rest []byte // of a line that is not complete
}

// Write implements io.Writer. Lines that are not JSON are left out.
func (p *proxyLog) Write(text []byte) (int, error) {
	p.mu.Lock()
	var lines []logLine
	p.rest = append(p.rest, text...)
	for {
		line, rest, whole := bytes.Cut(p.rest, []byte("\n"))
		if !whole {
			break
		}
		var l logLine
		if json.Unmarshal(line, &l) == nil {
			lines = append(lines, l)
		}
		p.rest = append([]byte(nil), rest...)
	}
	p.mu.Unlock()
	for _, l := range lines {
		p.line(p.proxy, l)
	}
	return len(text), nil
}

// logged takes in a line of a proxy's log.
func (l *Lab) logged(proxy string, line logLine) {
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
	if text := line.describe(); text != "" {
		l.sayLocked("fencepost", proxy, false, "%s", text)
		l.changedLocked()
	}
}

// describe says what a line means, "" if the page does not show it.
func (l logLine) describe() string {
	name := nameOf(l.Worker)
	switch l.Msg {
	case "granted":
		return fmt.Sprintf("%s is granted epoch %d", name, l.Epoch)
	case "takeover":
		return fmt.Sprintf("%s is granted epoch %d, and takes over from %s", name, l.Epoch, nameOf(l.From))
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
