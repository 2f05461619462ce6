package pgtest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
)

// crashes counts the crashes of a server by its log.
type crashes struct {
	mu    sync.Mutex
	count int
	read  int64  // bytes of the log that have been read
	part  []byte // the last line, as far as it is there
}

// crashed is what the server logs when a process of it has crashed, before it ends the others.
var crashed = []byte("terminating any other active server processes")

// Crashes returns how many times the server has ended the processes of all its connections because
// one of them had crashed. A crash is counted before any other connection can notice it.
func (s *Server) Crashes() (int, error) {
	c := &s.crashes
	c.mu.Lock()
	defer c.mu.Unlock()
	log, err := os.Open(s.logFile())
	if err != nil {
		return 0, fmt.Errorf("read the server's log: %w", err)
	}
	defer log.Close()
	more, err := io.ReadAll(io.NewSectionReader(log, c.read, 1<<62))
	if err != nil {
		return 0, fmt.Errorf("read the server's log: %w", err)
	}
	c.read += int64(len(more))
	text := append(c.part, more...)
	end := bytes.LastIndexByte(text, '\n') + 1
	c.count += bytes.Count(text[:end], crashed)
	c.part = bytes.Clone(text[end:])
	return c.count, nil
}
