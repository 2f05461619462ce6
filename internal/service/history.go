package service

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/audit/evidence"
	"github.com/fencepost/fencepost/internal/service/hosts"
)

const (
	// mostLatest is how many refusals of a database are listed, and mostAsked how many databases are asked for them.
	mostLatest = 200
	mostAsked  = 16
)

// look calls do with a new connection of the control role to a database.
func (s *Server) look(ctx context.Context, database string, do func(*pgx.Conn) error) error {
	return store.Look(ctx, hosts.Store(*s.current(), s.upstream, database), do)
}

// knownDatabases returns the databases that workers use, and those that were found to have a fence.
func (s *Server) knownDatabases() []string {
	all := slices.AppendSeq(s.records.Databases(), maps.Keys(s.fences.all()))
	slices.Sort(all)
	return slices.Compact(all)
}

// history returns what a database records of a resource in a time.
func (s *Server) history(ctx context.Context, database, resource string, since, until time.Time) (any, error) {
	if !slices.Contains(s.knownDatabases(), database) {
		return nil, admin.ErrUnknown
	}
	var p evidence.Period
	err := s.look(ctx, database, func(conn *pgx.Conn) (err error) {
		p, err = evidence.In(ctx, conn, resource, since, until)
		return err
	})
	return p, err
}

// refusalList is the body of /v1/refusals. Its JSON is a contract.
type refusalList struct {
	Databases []databaseRefusals `json:"databases"`
}

// databaseRefusals are the newest refusals that a database records, the newest first, or why they are not known.
type databaseRefusals struct {
	Database string             `json:"database"`
	Refusals []evidence.Refusal `json:"refusals"`
	Error    string             `json:"error,omitempty"`
}

// refusals returns the newest refusals of all databases.
func (s *Server) refusals(ctx context.Context) (any, error) {
	list := refusalList{Databases: []databaseRefusals{}}
	known := s.knownDatabases()
	for _, database := range known[:min(len(known), mostAsked)] {
		of := databaseRefusals{Database: database, Refusals: []evidence.Refusal{}}
		err := s.look(ctx, database, func(conn *pgx.Conn) (err error) {
			of.Refusals, err = evidence.Latest(ctx, conn, mostLatest)
			return err
		})
		if err != nil {
			of.Error = err.Error()
		}
		list.Databases = append(list.Databases, of)
	}
	return list, nil
}
