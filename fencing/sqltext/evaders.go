package sqltext

import "strings"

// evadesReadOnly returns why a function of this name is not a read, although the
// server's read-only mode allows it.
func evadesReadOnly(name string) (string, bool) {
	for _, f := range evaderFamilies {
		if strings.HasPrefix(name, f.prefix) {
			return f.why, true
		}
	}
	why, ok := evaders[name]
	return why, ok
}

// Why a function is listed.
const (
	evadesByMessage    = "it sends a message or a notification"
	evadesByConnection = "it works through another connection or process"
	evadesByText       = "it runs SQL text, which is not looked at"
	evadesByLargeObj   = "it writes large objects, which 15 allows in read-only mode"
	evadesByFile       = "it writes files of the server"
	evadesByWAL        = "it writes to the WAL"
	evadesByServer     = "it changes how the server runs"
	evadesByBackend    = "it ends the work of another session"
	evadesBySlot       = "it changes replication slots or origins"
	evadesByStats      = "it changes statistics"
	evadesByIndex      = "it writes index or heap pages"
	evadesByCatalog    = "it writes the catalog"
)

// evaderFamilies are listed by the prefix of their names.
var evaderFamilies = []struct{ prefix, why string }{
	{"dblink", evadesByConnection},
	{"run_command_on_", evadesByConnection}, // citus
	{"pg_background_", evadesByConnection},  // pg_background
	{"crosstab", evadesByText},              // tablefunc
	{"connectby", evadesByText},             // tablefunc
	{"pg_file_", evadesByFile},              // adminpack
	{"pg_stat_reset", evadesByStats},
	{"pg_replication_origin_session_", evadesBySlot},
	{"pg_replication_origin_xact_", evadesBySlot},
	{"heap_force_", evadesByIndex}, // pg_surgery
	{"binary_upgrade_", evadesByCatalog},
}

// evaders are listed individually. They do not include functions that only lock
// (advisory locks), that only read the server's state, or that read-only mode refuses
// (nextval, setval). A test compares the list with the functions of a real server.
var evaders = map[string]string{
	"pg_notify":               evadesByMessage,
	"pg_logical_emit_message": evadesByMessage,

	"query_to_xml":               evadesByText,
	"query_to_xmlschema":         evadesByText,
	"query_to_xml_and_xmlschema": evadesByText,
	"ts_stat":                    evadesByText,
	"ts_rewrite":                 evadesByText,
	"xpath_table":                evadesByText, // xml2

	"lo_creat":      evadesByLargeObj,
	"lo_create":     evadesByLargeObj,
	"lo_from_bytea": evadesByLargeObj,
	"lo_import":     evadesByLargeObj,
	"lo_put":        evadesByLargeObj,
	"lo_truncate":   evadesByLargeObj,
	"lo_truncate64": evadesByLargeObj,
	"lo_unlink":     evadesByLargeObj,
	"lowrite":       evadesByLargeObj,
	"lo_export":     evadesByFile,

	"pg_create_restore_point": evadesByWAL,
	"pg_switch_wal":           evadesByWAL,
	"pg_log_standby_snapshot": evadesByWAL,
	"pg_backup_start":         evadesByWAL,
	"pg_backup_stop":          evadesByWAL,

	"pg_reload_conf":        evadesByServer,
	"pg_rotate_logfile":     evadesByServer,
	"pg_logfile_rotate":     evadesByServer, // adminpack
	"pg_rotate_logfile_old": evadesByServer, // up to 15
	"pg_promote":            evadesByServer,
	"pg_wal_replay_pause":   evadesByServer,
	"pg_wal_replay_resume":  evadesByServer,

	"pg_cancel_backend":    evadesByBackend,
	"pg_terminate_backend": evadesByBackend,

	"pg_create_physical_replication_slot": evadesBySlot,
	"pg_create_logical_replication_slot":  evadesBySlot,
	"pg_copy_physical_replication_slot":   evadesBySlot,
	"pg_copy_logical_replication_slot":    evadesBySlot,
	"pg_drop_replication_slot":            evadesBySlot,
	"pg_replication_slot_advance":         evadesBySlot,
	"pg_logical_slot_get_changes":         evadesBySlot,
	"pg_logical_slot_get_binary_changes":  evadesBySlot,
	"pg_sync_replication_slots":           evadesBySlot,
	"pg_replication_origin_create":        evadesBySlot,
	"pg_replication_origin_drop":          evadesBySlot,
	"pg_replication_origin_advance":       evadesBySlot,

	"pg_stat_statements_reset":   evadesByStats,
	"pg_restore_relation_stats":  evadesByStats,
	"pg_restore_attribute_stats": evadesByStats,
	"pg_clear_relation_stats":    evadesByStats,
	"pg_clear_attribute_stats":   evadesByStats,

	"brin_summarize_new_values":  evadesByIndex,
	"brin_summarize_range":       evadesByIndex,
	"brin_desummarize_range":     evadesByIndex,
	"gin_clean_pending_list":     evadesByIndex,
	"pg_truncate_visibility_map": evadesByIndex, // pg_visibility

	"pg_import_system_collations":   evadesByCatalog,
	"pg_extension_config_dump":      evadesByCatalog,
	"pg_stop_making_pinned_objects": evadesByCatalog,
	"pg_nextoid":                    evadesByCatalog,
}
