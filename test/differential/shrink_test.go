package differential

import (
	"strings"
	"time"
)

// shrinkRuns and shrinkTime limit how often, and for how long, a failing script is
// run to shrink it.
const (
	shrinkRuns = 400
	shrinkTime = 30 * time.Second
)

// shrink shrinks a failing script; fails reports whether a script still fails. It
// removes steps, then statements of texts, then the splitting.
func shrink(s script, fails func(script) bool) script {
	left, until := shrinkRuns, time.Now().Add(shrinkTime)
	try := func(c script) bool {
		if left--; left < 0 || time.Now().After(until) || !fails(c) {
			return false
		}
		s = c
		return true
	}
	whole := s
	whole.cut = 0
	try(whole)
	for size := max(len(s.steps)/2, 1); ; {
		again := false
		for at := 0; at < len(s.steps); {
			c := s
			c.steps = append(append([]step(nil), s.steps[:at]...), s.steps[min(at+size, len(s.steps)):]...)
			if try(c) {
				again = true
			} else {
				at += size
			}
		}
		if size == 1 && !again || left < 0 || time.Now().After(until) {
			break
		}
		size = max(size/2, 1)
	}
	for i := range s.steps {
		for shorter(&s, i, try) {
		}
	}
	return s
}

// shorter removes one statement from the text of step i, or truncates it.
func shorter(s *script, i int, try func(script) bool) bool {
	for w, word := range s.steps[i].words {
		if !word.quoted {
			continue
		}
		parts := strings.Split(word.text, ";")
		for at := range parts {
			if len(parts) == 1 {
				break
			}
			if try(s.with(i, w, strings.Join(append(append([]string(nil), parts[:at]...), parts[at+1:]...), ";"))) {
				return true
			}
		}
		if n := len(word.text); n > 200 && try(s.with(i, w, word.text[:n/2])) {
			return true
		}
		if t := strings.TrimSpace(word.text); t != word.text && try(s.with(i, w, t)) {
			return true
		}
	}
	return false
}

// with returns the script with another text as word w of step i.
func (s *script) with(i, w int, text string) script {
	c := *s
	c.steps = append([]step(nil), s.steps...)
	c.steps[i].words = append([]word(nil), s.steps[i].words...)
	c.steps[i].words[w].text = text
	return c
}
