package migrations

import (
	"context"
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
)

// UpFrom is Up for the files of another release.
func UpFrom(ctx context.Context, conn *pgx.Conn, opts Options, files fs.FS) (Migrated, error) {
	r, err := read(files)
	if err != nil {
		return Migrated{}, err
	}
	return r.up(ctx, conn, opts)
}

// File returns a file of this release.
func File(t *testing.T, name string) string {
	t.Helper()
	text, err := embedded.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// WithFiles returns the files of this release, and others instead of them or beside them.
func WithFiles(t *testing.T, others map[string]string) fs.FS {
	t.Helper()
	dir := fstest.MapFS{}
	for _, subject := range subjects {
		dir[subject+".sql"] = &fstest.MapFile{Data: []byte(File(t, subject+".sql"))}
	}
	for name, text := range others {
		dir[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return dir
}
