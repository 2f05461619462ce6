package playground

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

// slot is the place of a worker: its network, and the processes that it is, one after the other.
type slot struct {
	name  string
	node  int // its number in the cluster; 0 without one
	relay *relay
	proc  *scratch.Process // nil if there is none

	alive  bool // started, and not killed. A node that does not lead has no process
	frozen bool
	armed  bool // frozen as soon as it is in a transaction
	cut    bool

	id      string // of the process
	told    report // its role
	trouble string // the last error, until it writes again
	wrote   int
	refused int
}

// end kills the process, and ends the network.
func (s *slot) end() {
	if s.proc != nil {
		_ = s.proc.Stop(syscall.SIGKILL) // which cannot be refused
	}
	s.relay.close()
}

// newSlots prepares the workers of a scene. They are not started.
func (env *environment) newSlots(ctx context.Context, def *sceneDef) (slots []*slot, err error) {
	defer func() {
		if err != nil {
			for _, s := range slots {
				s.end()
			}
			slots = nil
		}
	}()
	add := func(name string, node int, proxy string) error {
		p, err := env.proxy(ctx, proxy, def.elects)
		if err != nil {
			return err
		}
		r, err := newRelay(p.Address)
		if err != nil {
			return err
		}
		slots = append(slots, &slot{name: name, node: node, relay: r})
		return nil
	}
	if !def.elects {
		for _, name := range workerNames {
			if err := add(name, 0, "proxy"); err != nil {
				return slots, err
			}
		}
		return slots, nil
	}
	for id := 1; id <= nodes; id++ { // each has a proxy beside it
		if err := add(nodeName(id), id, fmt.Sprintf("proxy-%d", id)); err != nil {
			return slots, err
		}
	}
	return slots, nil
}

// workerNames are the workers of the scenes in which Fencepost's own leases are competed for.
var workerNames = []string{"worker-a", "worker-b", "worker-c"}

// nodes is how many nodes the cluster of the other scene has.
const nodes = 5

func nodeName(id int) string { return fmt.Sprintf("node-%d", id) }

// launchLocked starts a process for a slot, and reads its reports.
func (l *Lab) launchLocked(s *slot) error {
	args := []string{"playground-worker", "--name", s.name, "--dsn", l.env.workerDSN(s.relay.address()), "--resource", l.mu.scene.resource,
		"--think", think.String(), "--rest", rest.String()}
	if s.node > 0 {
		args = append(args, "--insist", "--again", again.String())
	}
	log, err := os.OpenFile(filepath.Join(l.env.dir, s.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create the log of %s: %w", s.name, err)
	}
	defer log.Close() // the child has its own
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("create a pipe: %w", err)
	}
	defer write.Close()
	cmd := exec.Command(l.env.program, args...)
	cmd.Env = append(os.Environ(), "PGPASSWORD="+l.env.pg.Password) // not among the arguments, which everybody can read
	cmd.Stdout, cmd.Stderr = write, log
	p, err := scratch.Start(s.name, cmd)
	if err != nil {
		return errors.Join(err, read.Close())
	}
	s.proc, s.id, s.told, s.trouble, s.frozen, s.armed = p, "", report{}, "", false, false
	l.env.readers.Go(func() {
		defer read.Close()
		for lines := bufio.NewScanner(read); lines.Scan(); {
			var r report
			if json.Unmarshal(lines.Bytes(), &r) == nil {
				l.reported(s, p, r)
			}
		}
		<-p.Done()
		l.ended(s, p)
	})
	return nil
}

// ended notes that a process has ended by itself.
func (l *Lab) ended(s *slot, p *scratch.Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.proc != p || l.slotLocked(s.name) != s {
		return
	}
	s.proc = nil
	if s.node == 0 {
		s.alive = false
	}
	l.sayLocked("worker", s.name, true, "its process has ended: %v", p.Err())
	l.changedLocked()
}

// reported takes in what a worker reports.
func (l *Lab) reported(s *slot, p *scratch.Process, r report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.proc != p || l.slotLocked(s.name) != s {
		return // it was killed since, or belongs to an earlier scene
	}
	s.id = r.Worker
	switch r.Kind {
	case reportConnected:
		s.told = report{}
	case reportRole:
		s.told = r
		if r.Role == "leader" {
			l.sayLocked("worker", s.name, false, "is told that it leads, epoch %d", r.Epoch)
		} else {
			l.sayLocked("worker", s.name, false, "is told its role: %s", r.Role)
		}
	case reportRead:
		if s.armed {
			s.armed = false
			if err := l.stopProcessLocked(s); err != nil {
				l.mu.problem = err.Error()
			}
			l.sayLocked("you", s.name, false, "frozen (SIGSTOP) in the middle of a transaction: it has read, and is about to write row %d", r.N)
		}
	case reportWrote:
		s.wrote++
		s.trouble = ""
	case reportRefused:
		s.refused++
		l.mu.refused++
		l.markRefusalLocked(s.name)
		text := fmt.Sprintf("%s %s: %s", r.Severity, r.SQLState, r.Message)
		if text != s.trouble { // one line for all that follow each other
			l.sayLocked("worker", s.name, true, "is refused at its %s: %s", r.Step, text)
		}
		s.trouble = text
	case reportBroken:
		s.trouble = r.Message
		l.sayLocked("worker", s.name, true, "has lost its connection: %s", r.Message)
	}
	l.changedLocked()
}
