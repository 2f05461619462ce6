package sqltext

// harmlessVolatile are the built-in functions that are volatile only because their result or their duration varies, and
// that change nothing. pg_advisory_unlock_all frees what only the session itself has locked; pools call it for each
// connection that is given back. set_config does no more than SET; a statement in which it could undo read-only mode is
// not a Read.
var harmlessVolatile = map[string]bool{
	"clock_timestamp": true, "timeofday": true,
	"random": true, "random_normal": true, "gen_random_uuid": true, "uuidv4": true, "uuidv7": true,
	"array_sample": true, "array_shuffle": true,
	"set_config": true, "current_query": true, "currval": true, "lastval": true,
	"pg_is_in_recovery": true, "pg_current_wal_lsn": true, "pg_current_wal_insert_lsn": true, "pg_current_wal_flush_lsn": true,
	"pg_last_wal_receive_lsn": true, "pg_last_wal_replay_lsn": true, "pg_last_xact_replay_timestamp": true,
	"pg_relation_size": true, "pg_total_relation_size": true, "pg_table_size": true, "pg_indexes_size": true,
	"pg_database_size": true, "pg_tablespace_size": true,
	"pg_partition_tree": true, "pg_partition_ancestors": true, "pg_blocking_pids": true,
	"txid_status": true, "pg_xact_status": true,
	"pg_sleep": true, "pg_sleep_for": true, "pg_sleep_until": true,
	"pg_advisory_unlock_all": true,
}

// runsOther are the built-in functions that are not volatile, but run something that
// their arguments name: a relation, a type, a function, an operator class. Two of them
// assign a transaction id.
var runsOther = map[string]string{
	"table_to_xml":                  runsRelation,
	"table_to_xmlschema":            runsRelation,
	"table_to_xml_and_xmlschema":    runsRelation,
	"schema_to_xml":                 runsRelation,
	"schema_to_xmlschema":           runsRelation,
	"schema_to_xml_and_xmlschema":   runsRelation,
	"database_to_xml":               runsRelation,
	"database_to_xmlschema":         runsRelation,
	"database_to_xml_and_xmlschema": runsRelation,
	"pg_input_is_valid":             runsType,
	"pg_input_error_info":           runsType,
	"satisfies_hash_partition":      "it runs the operator class of a partition key",
	"fmgr_sql_validator":            "it reads a function's body as a query",
	"fmgr_c_validator":              "it loads a library",
	"fmgr_internal_validator":       "it is part of CREATE FUNCTION",
	"postgresql_fdw_validator":      "it is part of CREATE SERVER",
	"txid_current":                  assignsXid,
	"pg_current_xact_id":            assignsXid,
}

const (
	runsRelation = "it reads relations that are not named in the text"
	runsType     = "it runs the checks of types that are not named in the text"
	assignsXid   = "it assigns a transaction id"
)
