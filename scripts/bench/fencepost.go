package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// startFencepost starts each program of the plan.
func (s *servers) startFencepost(ctx context.Context, p *plan) error {
	for _, one := range p.programs {
		if err := s.startProgram(ctx, p, one); err != nil {
			return fmt.Errorf("start %s: %w", one.path, err)
		}
	}
	return nil
}

// startProgram starts one, once for all that it contends as: without a resource, with one whose reads
// are proven, with one whose transactions are all checked, and with a guarded table.
func (s *servers) startProgram(ctx context.Context, p *plan, one program) error {
	path, err := filepath.Abs(one.path)
	if err != nil {
		return err
	}
	if err := s.migrate(ctx, path, one); err != nil {
		return err
	}
	port, portErr := freePort()
	admin, adminErr := freePort()
	if err := errors.Join(portErr, adminErr); err != nil {
		return err
	}
	file := filepath.Join(s.dir, one.name+".yml")
	text := fmt.Sprintf("listen: 127.0.0.1:%s\nadmin: 127.0.0.1:%s\nupstream:\n  address: 127.0.0.1:%s\nunfenced: allow\nlog:\n  level: warn\n"+
		"resources:\n  proven:\n    reads: proven\n", port, admin, s.pgPort)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	cmd, err := s.start(nil, []string{"FENCEPOST_CONTROL_PASSWORD=bench"}, path, "serve", "--config", file)
	if err != nil {
		return err
	}
	of := func(resource string) string {
		return fmt.Sprintf("-c fencepost.resource=%s -c fencepost.worker=%s -c fencepost.campaign=wait", resource, one.name)
	}
	prefix := ""
	if one.name != mainProgram {
		prefix = one.name + " "
	}
	s.add(p, &contender{name: prefix + "unfenced", port: port, process: cmd})
	s.add(p, &contender{name: prefix + "proven", port: port, process: cmd, options: of("proven"), reads: true})
	s.add(p, &contender{name: prefix + "fenced", port: port, process: cmd, options: of(one.resource())})
	if one.name == mainProgram {
		s.add(p, &contender{name: "guarded", port: port, process: cmd, options: of("guarded"), guarded: true})
	}
	return s.await(ctx, port, filepath.Base(path))
}

// resource is the one whose transactions a program checks.
func (one program) resource() string { return role + "-" + one.name }

// migrate creates the fence, and guards a table by the main program.
func (s *servers) migrate(ctx context.Context, path string, one program) error {
	dsn := fmt.Sprintf("postgres://postgres@127.0.0.1:%s/bench", s.pgPort)
	migrate := exec.CommandContext(ctx, path, "migrate", "--dsn", dsn)
	migrate.Env = append(os.Environ(), "FENCEPOST_CONTROL_PASSWORD=bench")
	if out, err := migrate.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate: %w\n%s", err, out)
	}
	if one.name != mainProgram {
		return nil
	}
	if err := s.execIn(ctx, "fencepost", s.pgPort, role, "SELECT fencepost.register('guarded')"); err != nil {
		return err
	}
	guard := exec.CommandContext(ctx, path, "guard", "add", "--dsn", dsn, "--resource", "guarded", "--table", "public.guarded", "--stamp", "fence_epoch")
	if out, err := guard.CombinedOutput(); err != nil {
		return fmt.Errorf("guard add: %w\n%s", err, out)
	}
	return nil
}
