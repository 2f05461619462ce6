package drivers

import (
	"net"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/pgtest"
)

const consolePassword = "look"

// javaConsole is the directory of pgjdbc's program for the console.
var javaConsole = build{name: "java-console", args: func(target string) []string {
	return []string{"javac", "-cp", jdbcJar, "-sourcepath", "java", "-d", target, "java/drivers/Console.java"}
}}

// TestDriversUseTheConsole: each asks several times, so that it prepares the statement if it ever does.
func TestDriversUseTheConsole(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	h := newCluster(t, pg, serve(t, pg, "FENCEPOST_CONSOLE_PASSWORD="+consolePassword))
	h.join(t, "w")
	env := append(h.at(t, h.proxy.Address, ""), "PGDATABASE=fencepost", "PGUSER=ops", "PGPASSWORD="+consolePassword, "LED="+h.db) // the proxy shows other databases too
	for _, d := range []driver{
		{"psycopg", func(testing.TB) (args, env []string) { return python("console.py") }},
		{"psycopg2", func(testing.TB) (args, env []string) { return python("console.py") }},
		{"node pg", func(t testing.TB) (args, env []string) {
			return []string{"node", "node/console.js"}, []string{"NODE_PATH=" + nodeModules(t)}
		}},
		{"pgjdbc", func(t testing.TB) (args, env []string) {
			return []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", javaConsole.path(t) + ":" + jdbcJar, "drivers.Console"}, nil
		}},
	} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			want := `{"scenario":"console","result":{"leaders":[["` + resource + `","w","1"]],"ping":"1","refused":"42704"}}`
			if got := d.run(t, d.name, env); len(got) != 1 || got[0].String() != want {
				t.Errorf("%v, want %s", got, want)
			}
		})
	}
	t.Run("pgx", func(t *testing.T) {
		t.Parallel()
		host, port, err := net.SplitHostPort(h.proxy.Address)
		if err != nil {
			t.Fatal(err)
		}
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
			cfg, err := pgx.ParseConfig("dbname=fencepost user=ops sslmode=disable password=" + consolePassword + " host=" + host + " port=" + port)
			if err != nil {
				t.Fatal(err)
			}
			cfg.DefaultQueryExecMode = mode
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			if err != nil {
				t.Fatalf("%s: %v", mode, err)
			}
			for range 3 {
				rows, err := conn.Query(t.Context(), "SHOW LEADERS")
				if err != nil {
					t.Fatalf("%s: %v", mode, err)
				}
				all, err := pgx.CollectRows(rows, pgx.RowToMap)
				if err != nil || !slices.ContainsFunc(all, func(row map[string]any) bool { return row["database"] == h.db && row["leader"] == "w" }) {
					t.Errorf("%s: %v, %v", mode, all, err)
				}
			}
			if err := conn.Ping(t.Context()); err != nil {
				t.Errorf("%s: %v", mode, err)
			}
			if err := conn.Close(t.Context()); err != nil {
				t.Errorf("%s: %v", mode, err)
			}
		}
	})
}
