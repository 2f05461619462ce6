package protocol_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/machinetest"
)

// atLeastTranscripts guards against a testdata that has been lost.
const atLeastTranscripts = 400

// TestTranscripts: the machine says what it said in sessions with real servers. Package
// machinetest documents the form of the transcripts, and how they are recorded.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < atLeastTranscripts {
		t.Errorf("%d transcripts, want at least %d", len(files), atLeastTranscripts)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			session, inputs, err := machinetest.Parse(string(text))
			if err != nil {
				t.Fatal(err)
			}
			got, _, _, err := machinetest.Play(session, inputs)
			if err != nil {
				t.Fatal(err)
			}
			differ(t, string(text), got)
		})
	}
}

// differ reports the first line that differs, with what stands before it.
func differ(t *testing.T, want, got string) {
	t.Helper()
	wanted, all := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(wanted), len(all)) {
		if i < len(wanted) && i < len(all) && wanted[i] == all[i] {
			continue
		}
		t.Errorf("line %d differs; want\n%s\ngot\n%s", i+1,
			strings.Join(wanted[max(0, i-5):min(i+3, len(wanted))], "\n"), strings.Join(all[max(0, i-5):min(i+3, len(all))], "\n"))
		return
	}
}
