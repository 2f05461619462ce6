package fencing

// Ending says how a term has ended, as far as the proxy of the next leader knows.
type Ending string

// The endings of terms.
const (
	EndingUnseen  Ending = ""
	EndingLeft    Ending = "left"    // its lease was released, because the worker or its proxy did not need it any more, or had to hand over
	EndingSilence Ending = "silence" // its lease was released, because the worker was silent
	EndingExpired Ending = "expired" // its lease was not renewed any more, or the lease service took it away
	EndingGone    Ending = "gone"    // its proxy was gone, and the worker, or the one to whom it was to hand over, took the lease
)
