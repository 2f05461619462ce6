package differential

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/fencepost/fencepost/internal/machinetest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

var record = flag.Bool("record", false, "write the kept scripts into the transcripts of package proxy/protocol")

// machineData is where the transcripts are.
const machineData = "../../proxy/protocol/testdata"

// recordedMajors are the major versions of Postgres on which transcripts are recorded.
var recordedMajors = []int{15, 18}

// noTranscript lists the kept scripts that cannot be a transcript, with the reasons: today none.
// One that cancels, or that waits inside a message or for another session, cannot.
var noTranscript = map[string]string{}

// transcriptOf returns the file of a kept script's transcript.
func transcriptOf(name string, major int) string {
	return filepath.Join(machineData, fmt.Sprintf("kept_%s_leader_%d.txt", name, major))
}

var nameOfTranscript = regexp.MustCompile(`kept_(\w+)_leader_\d+\.txt$`)

// TestKeptScriptsHaveTranscripts: each kept script is replayed by the tests of package
// proxy/protocol, without Postgres. With -record it first records them all; otherwise it records
// a few, and writes nothing.
func TestKeptScriptsHaveTranscripts(t *testing.T) {
	t.Parallel()
	names, scripts := keptScripts(t)
	some := names[:3]
	if *record {
		some = names
	}
	t.Run("record", func(t *testing.T) { recordKept(t, some, scripts) })
	for _, name := range names {
		why, listed := noTranscript[name]
		for _, major := range recordedMajors {
			switch _, err := os.Stat(transcriptOf(name, major)); {
			case err == nil && listed:
				t.Errorf("%s has a transcript and is listed as without one: %s", name, why)
			case err != nil && !listed:
				t.Errorf("%v: record it with -record, or list the script in noTranscript with the reason", err)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(machineData, "kept_*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := nameOfTranscript.FindStringSubmatch(file)
		if name == nil || scripts[name[1]].steps == nil {
			t.Errorf("%s belongs to no kept script", file)
		}
	}
}

// recordKept records scripts, and writes their transcripts if it is asked to. In each of these
// sessions the client gets what it gets from Postgres.
func recordKept(t *testing.T, names []string, scripts map[string]script) {
	eachMajor(t, func(t *testing.T, major int) {
		p := newPair(t, newCluster(t, major), fenced)
		for _, name := range names {
			if noTranscript[name] != "" {
				continue
			}
			s, text := scripts[name], ""
			want, got, diff, err := p.compareWith(s, func([]seen) (o outcome, err error) {
				text, o, err = p.fenced.recorded(major, s)
				return o, err
			})
			switch {
			case err != nil:
				t.Errorf("%s: %v", name, err)
			case diff != "":
				t.Errorf("%s: %s", name, report(s, want, got, diff))
			case *record:
				if err := os.WriteFile(transcriptOf(name, major), []byte(text), 0o644); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// recorded runs s through a machine without a proxy, as worker w, and returns the transcript.
func (r *database) recorded(major int, s script) (text string, o outcome, err error) {
	r.heard = nil
	parts, err := partsOf(s)
	if err != nil {
		return "", o, err
	}
	candidacy := r.cluster.Candidacy(r.name, "r", "w")
	p, startup, err := connect(target{network: "unix", address: socketOf(r.cluster.PG), params: r.params(), asleep: r.asleep})
	if err != nil {
		return "", o, err
	}
	text, got, err := machinetest.Record(machinetest.Session{
		Version: major, Fence: candidacy.FenceID(), Worker: "w", Incarnation: candidacy.Incarnation(), Status: *candidacy.Status(),
		Strings: parameter(startup, "standard_conforming_strings"), Encoding: parameter(startup, "client_encoding"),
	}, turns{p}, parts)
	p.close()
	if err != nil {
		return "", o, err
	}
	t := transcript{all: messagesOf(got), others: p.others, unasked: unasked(s), keepsText: keepsText(s)}
	o, err = r.outcome(t, nil)
	return text, o, err
}

// partsOf returns what the client sends up to each wait, and after the last one.
func partsOf(s script) (parts [][]byte, err error) {
	parts = [][]byte{nil}
	for _, st := range s.steps {
		last := len(parts) - 1
		switch st.name {
		case "wait":
			parts = append(parts, nil)
		case "Half", "Cancel", "Beside":
			return nil, fmt.Errorf("a transcript has no %s", st.name)
		default:
			parts[last] = append(parts[last], st.bytes()...)
		}
	}
	return parts, nil
}

// parameter returns the value of a setting that the server has reported.
func parameter(startup []wiretest.Message, name string) string {
	for _, m := range startup {
		if value, ok := bytes.CutPrefix(m.Body, cstring(name)); ok && m.Type == 'S' {
			return string(bytes.TrimRight(value, "\x00"))
		}
	}
	return ""
}

// messagesOf reads whole messages.
func messagesOf(b []byte) (all []wiretest.Message) {
	for len(b) > 0 {
		m, n, bad := readMessage(b)
		if bad || n == 0 {
			break
		}
		all, b = append(all, m), b[n:]
	}
	return all
}

// settle puts something fixed in the place of what differs between two runs: the server's process,
// and the ids of users' objects.
func settle(m wiretest.Message) {
	switch m.Type {
	case 'A':
		clear(m.Body[:4])
	case 'T':
		for rest := m.Body[2:]; len(rest) > 0; {
			f := rest[bytes.IndexByte(rest, 0)+1:] // behind the name, see columns
			for _, id := range [][]byte{f, f[6:]} {
				if binary.BigEndian.Uint32(id) > firstUser {
					binary.BigEndian.PutUint32(id, firstUser)
				}
			}
			rest = f[18:]
		}
	}
}

// turns lets a machine take turns with the server: it implements machinetest.Backend.
type turns struct{ *client }

func (p turns) Send(b []byte) { p.send(b, false, nil) }

func (p turns) Answers() (b []byte, err error) {
	if !p.untilQuiet() {
		return nil, fmt.Errorf("the server still works after %v", patience)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.all {
		settle(m)
		b = append(b, message(m.Type, m.Body)...)
	}
	p.all = nil
	return b, nil
}

func (p turns) HangUp() { p.hangUp() }
