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
func (s *servers) startFencepost(ctx context.Context, p *plan, r route) error {
	for _, one := range p.programs {
		if err := s.startProgram(ctx, p, r, one); err != nil {
			return fmt.Errorf("start %s: %w", one.path, err)
		}
	}
	return nil
}

// startProgram starts one, once for all that it contends as: without a resource, with one, and, on the plain
// route, with a guarded table.
func (s *servers) startProgram(ctx context.Context, p *plan, r route, one program) error {
	path, err := filepath.Abs(one.path)
	if err != nil {
		return err
	}
	at, portErr := s.listen(r)
	admin, adminErr := freePort()
	if err := errors.Join(portErr, adminErr); err != nil {
		return err
	}
	name := r.named("fencepost-" + one.name)
	file := filepath.Join(s.dir, name+".yml")
	if err := os.WriteFile(file, []byte(s.fencepostConfig(r, at, admin, one.resource(r), p.most(r))), 0o644); err != nil {
		return err
	}
	started := &process{name: name, env: []string{"FENCEPOST_CONTROL_PASSWORD=bench"}, argv: []string{path, "serve", "--config", file}}
	return s.contend(ctx, p, started, one.contenders(r, at)...)
}

// resource is the one that a program fences.
func (one program) resource(r route) string { return r.named(role + "-" + one.name) }

// contenders is all that a program contends as on a route.
func (one program) contenders(r route, at place) []*contender {
	prefix := ""
	if one.name != mainProgram {
		prefix = one.name + " "
	}
	of := func(resource string) string {
		return fmt.Sprintf("-c fencepost.resource=%s -c fencepost.worker=%s -c fencepost.campaign=wait", resource, one.name)
	}
	all := []*contender{{name: prefix + "unfenced", over: r, at: at}}
	all = append(all, &contender{name: prefix + "fenced", over: r, at: at, options: of(one.resource(r))})
	if r.name == plain && one.name == mainProgram {
		all = append(all, &contender{name: "guarded", over: r, at: at, options: of("guarded"), guarded: true})
	}
	return all
}

// migrate creates the fence with each program, and guards a table by the main one.
func (s *servers) migrate(ctx context.Context, p *plan) error {
	for _, one := range p.programs {
		if err := s.migrateWith(ctx, one); err != nil {
			return fmt.Errorf("migrate with %s: %w", one.path, err)
		}
	}
	return nil
}

func (s *servers) migrateWith(ctx context.Context, one program) error {
	path, err := filepath.Abs(one.path)
	if err != nil {
		return err
	}
	dsn := fmt.Sprintf("postgres://postgres@%s:%s/%s", loopback, s.pgPort, role)
	migrate := exec.CommandContext(ctx, path, "migrate", "--dsn", dsn)
	migrate.Env = append(os.Environ(), "FENCEPOST_CONTROL_PASSWORD=bench")
	if out, err := migrate.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
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
