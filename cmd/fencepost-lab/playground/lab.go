package playground

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/playground/textbook"
)

// How much of what happened the page shows.
const (
	shownLines  = 60
	shownAudit  = 30
	shownRows   = 12
	shownMarks  = time.Minute
	mostMarks   = 600
	stopTimeout = 10 * time.Second
)

// Lab is what happens behind the page.
type Lab struct {
	env *environment

	// acting is held during a deed, so that there is one at a time.
	acting sync.Mutex

	mu struct {
		sync.Mutex
		news    chan struct{} // closed and replaced at each change
		scene   *scene
		run     int // scenes so far
		began   time.Time
		slots   []*slot
		cluster *textbook.Cluster // nil without an election of the workers' own
		lastID  int64             // of a line

		seen     observed
		refusals []Mark
		lines    []Line
		audit    []Audit
		refused  int64  // how many refusals there were
		problem  string // why a deed failed, until another one succeeds
		blind    string // why the database cannot be looked at
	}
}

// notNow is the error of a deed that cannot be done, or not now. Nothing is wrong.
type notNow string

func (e notNow) Error() string { return string(e) }

// errUnknown is the error of a deed that nobody can do.
const errUnknown notNow = "there is no such deed"

func newLab(env *environment) *Lab {
	l := &Lab{env: env}
	l.mu.news, l.mu.scene, l.mu.began = make(chan struct{}), &scene{def: sceneNamed(sceneLease)}, time.Now()
	return l
}

// changedLocked wakes those who show the state, after the steps of the scene that are done.
func (l *Lab) changedLocked() {
	l.mu.scene.advance(l)
	close(l.mu.news)
	l.mu.news = make(chan struct{})
}

// News is closed at the next change.
func (l *Lab) News() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.news
}

// Enter stops the workers, and begins a scene. An algorithm counts in the scene with two leaders only.
func (l *Lab) Enter(ctx context.Context, name, algorithm string) error {
	def := sceneNamed(name)
	if algorithm == "" {
		algorithm = "bully"
	}
	elects, known := algorithms[algorithm]
	if def == nil || !known {
		return errUnknown
	}
	l.acting.Lock()
	defer l.acting.Unlock()
	l.clear()
	s := &scene{def: def}
	var cluster *textbook.Cluster
	if def.elects {
		s.algorithm, cluster = algorithm, textbook.New(elects, nodes)
	}
	l.mu.Lock()
	l.mu.run++
	l.mu.scene, l.mu.cluster = s, cluster
	l.mu.began, l.mu.seen, l.mu.refusals, l.mu.lines, l.mu.audit, l.mu.refused = time.Now(), observed{}, nil, nil, nil, 0
	l.mu.problem, l.mu.blind = "", ""
	s.resource = fmt.Sprintf("%s-%d", def.name, l.mu.run) // with a ledger of its own
	s.steps = def.steps()
	l.mu.Unlock()
	slots, err := l.env.newSlots(ctx, def)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.slots = slots
	if err != nil {
		l.mu.problem = "cannot prepare the scene: " + err.Error()
	}
	l.changedLocked()
	return err
}

// clear ends all workers.
func (l *Lab) clear() {
	l.mu.Lock()
	slots := l.mu.slots
	l.mu.slots, l.mu.cluster = nil, nil
	l.mu.Unlock()
	for _, s := range slots {
		s.end()
	}
}

// Do does what a visitor asks for: a deed of a worker or, if who is "", of the scene.
func (l *Lab) Do(deed, who string) error {
	l.acting.Lock()
	defer l.acting.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.doLocked(deed, who)
	var refused notNow
	switch {
	case err == nil:
		l.mu.problem = ""
	case !errors.As(err, &refused):
		l.mu.problem = err.Error()
	}
	l.changedLocked()
	return err
}

func (l *Lab) doLocked(deed, who string) error {
	switch {
	case who == "" && deed == "step":
		return l.mu.scene.act(l)
	case who == "" && deed == "start":
		return l.startAllLocked()
	case who == "" && deed == "split" && l.mu.cluster != nil:
		l.splitLocked()
		return nil
	case who == "" && deed == "heal":
		l.healLocked()
		return nil
	}
	s := l.slotLocked(who)
	if s == nil {
		return errUnknown
	}
	switch deed {
	case "start":
		return l.startLocked(s)
	case "kill":
		return l.killLocked(s)
	case "freeze":
		return l.freezeLocked(s)
	case "freeze-writing":
		return l.freezeWritingLocked(s)
	case "thaw":
		return l.thawLocked(s)
	case "cut", "join":
		l.moveLocked(s, deed == "cut")
		return nil
	}
	return errUnknown
}

// slotLocked returns the slot of a worker by its name, nil if there is none.
func (l *Lab) slotLocked(name string) *slot {
	for _, s := range l.mu.slots {
		if s.name == name {
			return s
		}
	}
	return nil
}

// sayLocked adds a line to what happened.
func (l *Lab) sayLocked(source, who string, bad bool, format string, args ...any) {
	l.mu.lastID++
	line := Line{ID: l.mu.lastID, At: l.nowLocked(), Source: source, Who: who, Text: fmt.Sprintf(format, args...), Bad: bad}
	l.mu.lines = append(l.mu.lines, line)
	if n := len(l.mu.lines); n > 2*shownLines {
		l.mu.lines = append([]Line(nil), l.mu.lines[n-shownLines:]...)
	}
}

// markRefusalLocked notes when a worker was refused.
func (l *Lab) markRefusalLocked(worker string) {
	l.mu.refusals = append(l.mu.refusals, Mark{Worker: worker, At: l.nowLocked(), Kind: "refused"})
	if n := len(l.mu.refusals); n > 2*mostMarks {
		l.mu.refusals = append([]Mark(nil), l.mu.refusals[n-mostMarks:]...)
	}
}

// nowLocked returns the time of the scene.
func (l *Lab) nowLocked() int64 { return time.Since(l.mu.began).Milliseconds() }

// nameOf returns the name of a worker by its id.
func nameOf(id string) string {
	name, _, _ := strings.Cut(id, ":")
	return name
}

// run moves the elections of the workers' own, and looks into the database, until ctx ends.
func (l *Lab) run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { l.observe(ctx) })
	all.Go(func() { l.elect(ctx) })
	all.Wait()
	l.acting.Lock()
	defer l.acting.Unlock()
	l.clear()
}
