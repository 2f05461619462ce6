package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// logLine is a line of Fencepost's log.
type logLine struct {
	Logger string `json:"logger"`
	Msg    string `json:"msg"`

	Resource string `json:"resource"`
	Worker   string `json:"worker"`
	Epoch    int64  `json:"epoch"`
	Reason   string `json:"reason"` // why a lease was released
	State    string `json:"state"`  // of a backend that was terminated

	// Only in the audit log:
	CurrentEpoch  int64    `json:"current_epoch"`
	CurrentWorker string   `json:"current_worker"`
	SQLState      string   `json:"sqlstate"`
	Statement     string   `json:"statement"`
	Tables        []string `json:"tables"`
}

// refused reports whether the line is the audit log's record of a stale write. A
// worker of the demo writes only as the leader, so no other write is refused.
func (l *logLine) refused() bool { return l.Logger == "audit" && l.Msg == "stale write rejected" }

// fenceLog reads Fencepost's log as it grows.
type fenceLog struct {
	path string
	at   int64 // where the next line begins
}

// next returns the lines written since the last call.
func (f *fenceLog) next() ([]logLine, error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("read Fencepost's log: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, f.at, 1<<40))
	if err != nil {
		return nil, fmt.Errorf("read Fencepost's log: %w", err)
	}
	var lines []logLine
	for {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			return lines, nil // the last line may be incomplete
		}
		text, f.at = rest, f.at+int64(len(line))+1
		var l logLine
		// Fencepost logs JSON; a crash's stack trace is not JSON.
		if json.Unmarshal(line, &l) == nil {
			lines = append(lines, l)
		}
	}
}
