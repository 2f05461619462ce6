package demo

import (
	"fmt"
	"io"
	"os"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

// refused reports whether the line is the audit log's record of a stale write. A
// worker of the demo writes only as the leader, so no other write is refused.
func refused(l scratch.LogLine) bool { return l.Logger == "audit" && l.Msg == "stale write rejected" }

// fenceLog reads Fencepost's log as it grows.
type fenceLog struct {
	path string
	at   int64 // where the next line begins
}

// next returns the lines written since the last call.
func (f *fenceLog) next() ([]scratch.LogLine, error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("read Fencepost's log: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.NewSectionReader(file, f.at, 1<<40))
	if err != nil {
		return nil, fmt.Errorf("read Fencepost's log: %w", err)
	}
	lines, rest := scratch.LogLines(text)
	f.at += int64(len(text) - len(rest))
	return lines, nil
}
