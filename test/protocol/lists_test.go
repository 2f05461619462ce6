package protocol

import (
	"testing"

	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestProtocolListsOfStatements: a client that lists prepared statements sees its
// own.
func TestProtocolListsOfStatements(t *testing.T) {
	t.Parallel()
	const list = "select name, statement, from_sql from pg_prepared_statements order by name"
	mine := Batch(Parse("mine", "select $1::int"))
	compareScripts(t,
		newScript("as a Query", at("Z", mine), at("Z", Q(list)), at("Z", Q("insert into t values (101)")), at("Z", Q(list)), at("Z", Q("select name, from_sql from pg_prepared_statement()"))),
		newScript("as messages", at("Z", mine), at("Z", Parse("list", list), Bind("", "list"), Exec("", 0), Sync()),
			at("Z", Run("insert into t values (102)"), Bind("", "list"), Exec("", 0), Sync()), at("Z", Bind("", "list"), Exec("", 1), Exec("", 0), Sync())),
		newScript("behind an error", at("Z", mine), at("Z", Run("select 1 / 0"), Run(list), Sync()), at("Z", Run(list), Sync()), at("Z", Q(list))),
		newScript("in a block", at("Z", Q("begin")), at("Z", Q("prepare p as select 1")), at("Z", Q(list)), at("Z", Q("insert into t values (103)")), at("Z", Run(list), Sync()),
			at("Z", Q("commit")), at("Z", Q(list))),
		newScript("in a failed block", at("Z", Q("begin")), at("Z", Q("select 1 / 0")), at("Z", Q(list)), at("Z", Run(list), Sync()), at("Z", Q("rollback")), at("Z", Q(list))),
		newScript("in a text", at("Z", mine), at("Z", Q("insert into t values (104); "+list)), at("Z", Q(list+"; insert into t values (105)")), at("Z", Q("select count(*) from t"))),
		newScript("behind statements that are gone", at("Z", mine), at("Z", Q("deallocate all")), at("Z", Q(list)), at("Z", Q("discard all")), at("Z", Run(list), Sync())),
		newScript("of an open batch", at("1", Parse("x", "select 1"), wiretest.Flush()), at("Z", Q(list)), at("Z", Sync())),
	)
}
