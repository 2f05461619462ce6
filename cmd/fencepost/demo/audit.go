package demo

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// auditLine is a line of Fencepost's log about a refused write.
type auditLine struct {
	Logger        string   `json:"logger"`
	Msg           string   `json:"msg"`
	Resource      string   `json:"resource"`
	Worker        string   `json:"worker"`
	Epoch         int64    `json:"epoch"`
	CurrentEpoch  int64    `json:"current_epoch"`
	CurrentWorker string   `json:"current_worker"`
	SQLState      string   `json:"sqlstate"`
	Statement     string   `json:"statement"`
	Tables        []string `json:"tables"`
}

// readAudit returns the refused writes in a log file.
func readAudit(path string) ([]auditLine, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer f.Close()
	var found []auditLine
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var a auditLine
		// A line that is no JSON is not an audit line: the last one may still
		// be in the writing.
		if json.Unmarshal(lines.Bytes(), &a) == nil && a.Logger == "audit" && a.Msg == "stale write rejected" {
			found = append(found, a)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return found, nil
}
