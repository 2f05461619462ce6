package protocol

import (
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

const docTable = `drop table if exists t; create table t (id int primary key, v text); alter table t owner to app`

func transcripts() []shown {
	ins := func(id string) []byte { return Run("insert into t values ($1)", id) }
	return []shown{
		{title: "Startup", rows: "W34", as: "startup",
			about: "Fencepost does not forward its own parameters. It asks the server by function calls which backend it is, and joins the candidacy. This worker does not lead, so its session is made read-only; the backend of one that leads is registered instead. The client's ReadyForQuery arrives when Fencepost knows the client's role. The server's own parameters are omitted here."},
		{title: "A leader's messages", rows: "F12 W16", about: "The backend is registered, and Fencepost inserts nothing.",
			steps: []step{at("Z", Q("begin; insert into t values (1); commit")), at("Z", Q("vacuum t")), at("ZZ", ins("2"), Sync(), Run("select count(*) from t"), Sync())}},
		{title: "A follower reads", rows: "F13 S4", about: "The server keeps the session read-only. In front of the first exchange, Fencepost sets its parameters, so that Postgres itself answers SHOW.", as: "follower",
			steps: []step{at("Z", Q("select count(*) from t")), at("Z", Run("select count(*) from t"), Sync())}},
		{title: "A follower writes", rows: "W11", about: "Postgres's read-only mode refuses the write, so the error appears where Postgres would put it, and the rest of the batch is skipped. Fencepost replaces the error. Before 16, and where read-only mode does not stop a statement, it replaces the statement by one that cannot be parsed.", as: "follower",
			steps: []step{at("Z", Q("insert into t values (1)")), at("ZZ", ins("1"), ins("2"), Sync(), Run("select 1"), Sync())}},
		{title: "A superseded worker writes", rows: "F20 W19", about: "Another worker was granted a higher epoch, and that grant has ended the backend. The client is told at its next use.", as: "superseded",
			steps: []step{at("$", Run("begin"), ins("1"), Run("commit"), Sync())}},
		{title: "A new leader whose epoch was not announced", rows: "F24 S11", about: "The first write is refused, and the refusal announces the epoch. In front of the next write, Fencepost registers the backend and restores the client's own default; it inserts nothing after that.", as: "untold",
			steps: []step{at("Z", Q("insert into t values (1)")), at("Z", Q("insert into t values (1)")), at("Z", Q("insert into t values (2)"))}},
		{title: "SHOW fencepost.role", rows: "W11", own: true, about: "The server itself answers, after a SET from Fencepost. The reply is therefore in its place, can be described, and fails in a failed transaction like any other.",
			steps: []step{at("Z", Q("show fencepost.role")), at("Z", Run("show fencepost.epoch"), Sync())}},
		{title: "Two-phase commit", rows: "F10", own: true, about: "It is refused for everyone, because a prepared transaction would outlive its backend. Fencepost sends a text that cannot be parsed in its place, and replaces the error. Like every error, it fails the block.",
			steps: []step{at("Z", Q("begin")), at("Z", Q("insert into t values (1)")), at("Z", Q("prepare transaction 'x'")), at("Z", Q("rollback"))}},
	}
}
