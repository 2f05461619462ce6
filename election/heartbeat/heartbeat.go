// Package heartbeat judges workers that have promised to send something at regular times. It
// has no clock: callers measure the gaps, and start the timer that a limit asks for. No safety
// depends on its verdict.
package heartbeat

import "time"

// A heartbeat is promised within these bounds. A shorter one would not be missed sooner,
// because every worker may pause for 3 s. A longer one would have to be observed for hours
// before there is a verdict.
const (
	Min = 100 * time.Millisecond
	Max = time.Minute
)

// Worker is what is known of the heartbeats of one worker. The zero Worker has promised none.
// It must not be used by two goroutines at once.
type Worker struct {
	promised time.Duration // 0: none
	// detector knows the gaps between the worker's bytes, and of is the promise under which
	// it saw them. It is nil before the first promise.
	detector *Detector
	of       time.Duration
	// since is how long ago the worker's last bytes came. known means that they came under
	// the present promise, and worked that the server has worked for the worker since.
	since         time.Duration
	known, worked bool
}

// detection returns how a worker with this promise is judged. A silence that is longer than
// that of a dead worker says nothing more about its heartbeats.
func detection(promised time.Duration) Config {
	cfg := Config{Threshold: 12, LeastDeviation: 500 * time.Millisecond, Pause: 3 * time.Second, Window: 1000, Least: 100}
	cfg.Longest = cfg.Ideal(promised)
	return cfg
}

// Promise sets how often the worker promises to send something, 0 for no promise. The gaps that
// were seen under another promise count no longer. Those of the last one count again when the
// worker repeats it.
func (w *Worker) Promise(every time.Duration) {
	if every == w.promised {
		return
	}
	w.promised, w.known = every, false
	if every != 0 && every != w.of {
		w.detector, w.of = New(detection(every)), every
	}
}

// Promised returns the present promise, 0 for none.
func (w *Worker) Promised() time.Duration { return w.promised }

// Pass says that d has passed since the last call, whether bytes came from the worker in that
// time, and whether the server works for it now. A gap in which the server worked for the worker
// counts only if the worker kept its promise nevertheless, over another connection: a program
// with one connection sends nothing while it waits for an answer.
func (w *Worker) Pass(d time.Duration, bytes, working bool) {
	if w.promised == 0 {
		return
	}
	w.since += d
	if !bytes {
		w.worked = w.worked || working
		return
	}
	if w.known && (!w.worked || w.since <= w.promised*3/2) {
		w.detector.Add(w.since)
	}
	w.since, w.known, w.worked = 0, true, working
}

// Limit returns the silence after which the worker counts as dead. It reports false while there is
// no promise, or while too few gaps are known. A worker that sends more often than it has promised
// may stop doing so: the limit is not below the promise and the pause that every worker may make.
func (w *Worker) Limit() (silence time.Duration, ok bool) {
	if w.promised == 0 {
		return 0, false
	}
	silence, ok = w.detector.Limit()
	if !ok {
		return 0, false
	}
	return max(silence, w.promised+w.detector.cfg.Pause), true
}

// Phi returns phi after such a silence, under the same conditions as Limit.
func (w *Worker) Phi(silence time.Duration) (phi float64, ok bool) {
	if w.promised == 0 {
		return 0, false
	}
	return w.detector.Phi(silence)
}
