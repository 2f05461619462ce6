// Package store is the access of the control role to a database: it opens connections, examines the schema fencepost,
// looks at databases and servers, and says what is wrong with them and what to do about it. What is done with the
// fences there is in packages fence and operator.
//
// All connections pin every setting that a default of the role or the database could change. Each begins by making sure
// that the server is Postgres itself, and that the schema belongs to the control role. Pooled ones close after 10 to 25
// seconds without use. When one has turned out to be dead, all pools of its Store are emptied.
//
// Open examines a database once, Examine does it again, and Probe, LogIn, Databases and Look do so on a connection of
// their own. An error that an operator has to act on is an Unusable, and FaultOf says for any error what to do. A
// StateReader asks one server for its state, by which the primary is found (package upstream).
package store
