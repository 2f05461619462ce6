package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// usage is what a process has used since it was started.
type usage struct {
	user, system time.Duration
	switches     int // voluntary context switches of all threads: each is a wait
	resident     int // what is in memory, in kB
	peak         int // the most that was in memory since startUsage, in kB
}

// tick is the unit of the times in /proc: USER_HZ is 100 on all architectures that Go supports.
const tick = 10 * time.Millisecond

// usageOf reads the usage of a process from /proc.
func usageOf(pid int) (usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, err
	}
	u, err := parseStat(string(stat))
	if err != nil {
		return usage{}, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return usage{}, err
	}
	for name, into := range map[string]*int{"VmRSS": &u.resident, "VmHWM": &u.peak} {
		if *into, err = statusField(string(status), name); err != nil {
			return usage{}, err
		}
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		return usage{}, err
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // a thread that has ended
		}
		n, err := statusField(string(text), "voluntary_ctxt_switches")
		if err != nil {
			return usage{}, err
		}
		u.switches += n
	}
	return u, nil
}

// parseStat reads the times in /proc/<pid>/stat, which follow the command in parentheses.
func parseStat(text string) (u usage, err error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const userAt, systemAt = 11, 12 // utime and stime, see proc(5)
	if len(fields) <= systemAt {
		return u, fmt.Errorf("read the times of a process in %q", text)
	}
	for at, into := range map[int]*time.Duration{userAt: &u.user, systemAt: &u.system} {
		n, err := strconv.Atoi(fields[at])
		if err != nil {
			return u, fmt.Errorf("read the times of a process in %q: %w", text, err)
		}
		*into = time.Duration(n) * tick
	}
	return u, nil
}

// statusField reads a number of /proc/<pid>/status.
func statusField(text, name string) (int, error) {
	for line := range strings.Lines(text) {
		if rest, found := strings.CutPrefix(line, name+":"); found {
			return strconv.Atoi(strings.Fields(rest)[0])
		}
	}
	return 0, fmt.Errorf("/proc has no %s", name)
}

// since is what was used since before; what is in memory stays as it is.
func (u usage) since(before usage) usage {
	u.user, u.system, u.switches = u.user-before.user, u.system-before.system, u.switches-before.switches
	return u
}

// usage is what the contender's process has used; nothing if it has none.
func (by *contender) usage() (usage, error) {
	if by.process == nil {
		return usage{}, nil
	}
	return usageOf(by.process.cmd.Process.Pid)
}

// startUsage is usage at the start of a run, from which the process's peak counts.
func (by *contender) startUsage() (usage, error) {
	if by.process == nil {
		return usage{}, nil
	}
	const forgetPeak = "5" // see proc(5)
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", by.process.cmd.Process.Pid), []byte(forgetPeak), 0); err != nil {
		return usage{}, fmt.Errorf("reset the peak of a process's memory: %w", err)
	}
	return by.usage()
}
