package scratch

import (
	"bytes"
	"encoding/json"
)

// LogLine is a line of Fencepost's log.
type LogLine struct {
	Logger string `json:"logger"`
	Msg    string `json:"msg"`

	Resource string `json:"resource"`
	Worker   string `json:"worker"`
	Epoch    int64  `json:"epoch"`
	From     string `json:"from"`
	Reason   string `json:"reason"` // why a lease was released
	State    string `json:"state"`  // of a backend that was terminated

	// Only in the audit log:
	CurrentEpoch  int64    `json:"current_epoch"`
	CurrentWorker string   `json:"current_worker"`
	SQLState      string   `json:"sqlstate"`
	Statement     string   `json:"statement"`
	Tables        []string `json:"tables"`
	Repeated      int64    `json:"repeated"`
}

// LogLines returns the lines of a part of a log, and what follows the last one, whose end is not there yet.
// Lines that are not JSON, such as the stack trace of a crash, are left out.
func LogLines(text []byte) (lines []LogLine, rest []byte) {
	for {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			return lines, text
		}
		text = rest
		var l LogLine
		if json.Unmarshal(line, &l) == nil {
			lines = append(lines, l)
		}
	}
}
