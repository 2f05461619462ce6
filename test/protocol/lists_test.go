package protocol

import (
	"testing"

	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestProtocolListsOfStatements: a client that lists prepared statements sees its
// own.
func TestProtocolListsOfStatements(t *testing.T) {
	t.Parallel()
	const list = "select name, statement, from_sql from pg_prepared_statements order by name"
	mine := cat(parse("mine", "select $1::int"), sync_())
	compareScripts(t,
		newScript("as a Query", at("Z", mine), at("Z", q(list)), at("Z", q("insert into t values (101)")), at("Z", q(list)), at("Z", q("select name, from_sql from pg_prepared_statement()"))),
		newScript("as messages", at("Z", mine), at("Z", parse("list", list), bind("", "list"), exec("", 0), sync_()),
			at("Z", run("insert into t values (102)"), bind("", "list"), exec("", 0), sync_()), at("Z", bind("", "list"), exec("", 1), exec("", 0), sync_())),
		newScript("behind an error", at("Z", mine), at("Z", run("select 1 / 0"), run(list), sync_()), at("Z", run(list), sync_()), at("Z", q(list))),
		newScript("in a block", at("Z", q("begin")), at("Z", q("prepare p as select 1")), at("Z", q(list)), at("Z", q("insert into t values (103)")), at("Z", run(list), sync_()),
			at("Z", q("commit")), at("Z", q(list))),
		newScript("in a failed block", at("Z", q("begin")), at("Z", q("select 1 / 0")), at("Z", q(list)), at("Z", run(list), sync_()), at("Z", q("rollback")), at("Z", q(list))),
		newScript("in a text", at("Z", mine), at("Z", q("insert into t values (104); "+list)), at("Z", q(list+"; insert into t values (105)")), at("Z", q("select count(*) from t"))),
		newScript("behind statements that are gone", at("Z", mine), at("Z", q("deallocate all")), at("Z", q(list)), at("Z", q("discard all")), at("Z", run(list), sync_())),
		newScript("of an open batch", at("1", parse("x", "select 1"), wiretest.Flush()), at("Z", q(list)), at("Z", sync_())),
	)
}
