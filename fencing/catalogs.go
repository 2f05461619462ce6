package fencing

import (
	"context"
	"errors"
	"sync"
	"time"
)

// fencelessFresh is how long a database counts as having no fence after it was found to have
// none. Then it is looked for again, before the next read that only that allows.
const fencelessFresh = time.Second

// fenceless is the catalog of a database that has no fence.
var fenceless = NewCatalog(Facts{Nothing: "the database had no fence until a moment ago"})

// Fenceless reports whether the database has no fence, so that there is nothing to protect
// from what a read may run. Such a catalog proves nothing.
func (c *Catalog) Fenceless() bool { return c == fenceless }

// CatalogOpener is Candidates.OpenCatalog for databases that have a fence. The error is
// ErrNoFence if the database has none.
type CatalogOpener func(ctx context.Context, database string) (c CatalogReader, leave func(), err error)

// Catalogs opens the catalogs of databases that may have no fence yet. It is safe for
// concurrent use.
type Catalogs struct {
	open CatalogOpener
	none sync.Map // by database: when it was last found to have no fence, a time.Time
}

// NewCatalogs returns a Catalogs that opens the catalogs of databases with a fence by open.
func NewCatalogs(open CatalogOpener) *Catalogs { return &Catalogs{open: open} }

// Open implements Candidates.OpenCatalog.
func (c *Catalogs) Open(ctx context.Context, database string) (CatalogReader, func(), error) {
	r := &lateReader{all: c, database: database}
	if err := r.look(ctx); err != nil {
		return nil, nil, err
	}
	return r, r.leave, nil
}

// fenceless reports whether the database had no fence a moment ago.
func (c *Catalogs) fenceless(database string) bool {
	at, ok := c.none.Load(database)
	return ok && time.Since(at.(time.Time)) < fencelessFresh
}

// lateReader is the CatalogReader of one connection. It looks for a fence until it finds one.
type lateReader struct {
	all      *Catalogs
	database string

	mu        sync.Mutex
	found     CatalogReader // nil until the database has a fence
	leaveOnce func()        // leaves found
	left      bool
}

// Catalog implements CatalogReader.
func (r *lateReader) Catalog() *Catalog {
	if c := r.reader(); c != nil {
		return c.Catalog()
	}
	if r.all.fenceless(r.database) {
		return fenceless
	}
	return nil
}

// RefreshCatalog implements CatalogReader.
func (r *lateReader) RefreshCatalog(ctx context.Context) {
	_ = r.look(ctx) // on an error nothing is known, and nothing passes
	if c := r.reader(); c != nil {
		c.RefreshCatalog(ctx)
	}
}

func (r *lateReader) reader() CatalogReader {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found
}

// look looks for a fence unless that was done a moment ago.
func (r *lateReader) look(ctx context.Context) error {
	if r.reader() != nil || r.all.fenceless(r.database) {
		return nil
	}
	began := time.Now()
	c, leave, err := r.all.open(ctx, r.database)
	if errors.Is(err, ErrNoFence) {
		r.all.none.Store(r.database, began)
		return nil
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left || r.found != nil {
		leave()
		return nil
	}
	r.found, r.leaveOnce = c, leave
	return nil
}

// leave says that the connection has ended.
func (r *lateReader) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = true
	if r.leaveOnce != nil {
		r.leaveOnce()
	}
}
