package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestComposeFileUsesKnownSettings detects variables in docker-compose.yml that are not
// settings.
func TestComposeFileUsesKnownSettings(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var compose struct {
		Services map[string]struct {
			Command     []string
			Environment map[string]string
			Volumes     []string
		}
		Volumes map[string]any // by name
	}
	if err := yaml.Unmarshal(text, &compose); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"FENCEPOST_DSN": true}
	for _, s := range new(Default()).settings() {
		for _, name := range s.envs() {
			known[name] = true
		}
	}
	found := 0
	for name, service := range compose.Services {
		for variable := range service.Environment {
			if strings.HasPrefix(variable, "FENCEPOST_") {
				found++
				if !known[variable] {
					t.Errorf("service %s sets %s, which is not a setting", name, variable)
				}
			}
		}
		for _, volume := range service.Volumes {
			path, _, _ := strings.Cut(volume, ":")
			if _, named := compose.Volumes[path]; named {
				continue
			}
			if _, err := os.Stat(filepath.Join("..", "..", path)); err != nil {
				t.Errorf("service %s: %v", name, err)
			}
		}
	}
	if found == 0 {
		t.Errorf("found no settings in %d services", len(compose.Services))
	}
}
