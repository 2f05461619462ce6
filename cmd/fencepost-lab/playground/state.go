package playground

// State is what the page shows. Times are milliseconds since the scene began.
type State struct {
	Scene     string   `json:"scene"`
	Algorithm string   `json:"algorithm,omitempty"` // of the scene with two leaders
	Now       int64    `json:"now"`
	Steps     []Step   `json:"steps"`
	Workers   []Worker `json:"workers"`
	Lease     Lease    `json:"lease"`
	Ledger    []Grant  `json:"ledger"` // newest first, not all
	Notes     []Note   `json:"notes"`  // newest first, not all
	Totals    Totals   `json:"totals"`
	Marks     []Mark   `json:"marks"` // of the last minute
	Lines     []Line   `json:"lines"` // newest first, not all
	Audit     []Audit  `json:"audit"` // newest first, not all
	Deeds     []Deed   `json:"deeds"` // of the scene as a whole
	Problem   string   `json:"problem,omitempty"`
}

// Step is one step of a scene.
type Step struct {
	Text   string `json:"text"`
	State  string `json:"state"`            // "done", "now" or "later"
	Button string `json:"button,omitempty"` // what the visitor does; "" if it happens by itself
}

// Worker is a worker as it is and as it sees itself.
type Worker struct {
	Name      string `json:"name"`
	ID        string `json:"id"`      // of its process, as the ledger has it; "" if it has not reported
	Process   string `json:"process"` // "running", "frozen" or "stopped"
	Cut       bool   `json:"cut"`     // it is on the other side of a partition
	Leads     bool   `json:"leads"`   // as it believes
	Epoch     int64  `json:"epoch"`   // as it was last told
	Believes  string `json:"believes"`
	Wrote     int    `json:"wrote"`
	Refused   int    `json:"refused"`
	LastError string `json:"last_error,omitempty"`
	Deeds     []Deed `json:"deeds"`
}

// Deed is what a visitor can do.
type Deed struct {
	Do    string `json:"do"`
	Who   string `json:"who,omitempty"` // a worker
	Label string `json:"label"`
}

// Lease is what the database has of the lease and of the fence.
type Lease struct {
	Kind     string `json:"kind"` // "lease", or "anyone" if everybody is awarded one
	Held     bool   `json:"held"`
	Holder   string `json:"holder"` // of the lease
	TTL      int64  `json:"ttl"`    // ms
	Until    int64  `json:"until"`  // when it expires
	Renewals int64  `json:"renewals"`
	Epoch    int64  `json:"epoch"`  // the highest, which may write
	Leader   string `json:"leader"` // to whom it was granted
}

// Grant is a line of the ledger.
type Grant struct {
	Epoch  int64  `json:"epoch"`
	Worker string `json:"worker"`
	At     int64  `json:"at"`
}

// Note is a row that a worker has written.
type Note struct {
	N      int64  `json:"n"`
	Worker string `json:"worker"`
	Epoch  int64  `json:"epoch"`
	At     int64  `json:"at"`
}

// Totals are counted in the database, but for the refusals, which the workers report.
type Totals struct {
	Written int64 `json:"written"`
	Twice   int64 `json:"twice"` // numbers that were written more than once
	Grants  int64 `json:"grants"`
	Refused int64 `json:"refused"`
}

// Mark is a moment in the life of a worker.
type Mark struct {
	Worker string `json:"worker"` // its name
	At     int64  `json:"at"`
	Kind   string `json:"kind"` // "wrote" or "refused"
}

// Line is something that happened. Source is "you", "worker", "node" or "fencepost".
type Line struct {
	ID     int64  `json:"id"`
	At     int64  `json:"at"`
	Source string `json:"source"`
	Who    string `json:"who"`
	Text   string `json:"text"`
	Bad    bool   `json:"bad,omitempty"`
}

// Audit is a line of the audit log.
type Audit struct {
	ID            int64  `json:"id"`
	At            int64  `json:"at"`
	Message       string `json:"message"`
	Worker        string `json:"worker"`
	Epoch         int64  `json:"epoch"`
	CurrentWorker string `json:"current_worker"`
	CurrentEpoch  int64  `json:"current_epoch"`
	SQLState      string `json:"sqlstate"`
	Statement     string `json:"statement"`
	Repeated      int64  `json:"repeated,omitempty"` // how many like it the line stands for
}
