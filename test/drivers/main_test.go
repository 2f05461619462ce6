package drivers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
)

// outputs is the directory of what is built for this test process.
var outputs string

func TestMain(m *testing.M) {
	var err error
	if outputs, err = os.MkdirTemp("", "fencepost-drivers-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	pgtest.Main(m, func() { _ = os.RemoveAll(outputs) })
}

// build is something that is built once per test process.
type build struct {
	name string
	args func(target string) []string // the command that builds target
	dir  string                       // its working directory
	once sync.Once
	err  error
}

// path returns the path of the result, and builds it on the first call.
func (b *build) path(t testing.TB) string {
	t.Helper()
	target := filepath.Join(outputs, b.name)
	b.once.Do(func() {
		args := b.args(target)
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = b.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			b.err = fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
	})
	if b.err != nil {
		t.Fatalf("build %s (`make drivers` installs what it needs): %v", b.name, b.err)
	}
	return target
}

// goDrivers is the program with pgx and lib/pq.
var goDrivers = build{name: "go-drivers", dir: "go", args: func(target string) []string {
	return []string{"go", "build", "-buildvcs=false", "-o", target, "."}
}}

// javaPrograms is the directory of the programs of pgjdbc and HikariCP.
var javaPrograms = build{name: "java", args: func(target string) []string {
	return []string{"javac", "-cp", hikariJars, "-sourcepath", "java", "-d", target, "java/drivers/Pgjdbc.java", "java/drivers/Hikari.java"}
}}

// hikariJars are where Debian's packages install HikariCP and what it needs.
const hikariJars = "/usr/share/java/HikariCP.jar:/usr/share/java/slf4j-api.jar:/usr/share/java/slf4j-nop.jar:" + jdbcJar

// jdbcJar is where Debian's libpostgresql-jdbc-java installs the driver.
const jdbcJar = "/usr/share/java/postgresql.jar"

// nodeModules returns where scripts/drivers.sh installs the packages of
// package-lock.json.
func nodeModules(t testing.TB) string {
	t.Helper()
	path, err := filepath.Abs("../../.cache/drivers/node/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("node's drivers are not installed (run `make drivers`): %v", err)
	}
	return path
}

// python runs a program with the interpreter that Debian's packages support.
func python(program string) (args, env []string) {
	interpreter := "/usr/bin/python3"
	if _, err := os.Stat(interpreter); err != nil {
		interpreter = "python3"
	}
	return []string{interpreter, "python/" + program}, []string{"PYTHONDONTWRITEBYTECODE=1"}
}

// unpacked returns the variables by which programs find what scripts/drivers.sh has unpacked.
func unpacked(t testing.TB) []string {
	t.Helper()
	find := func(pattern string) string {
		found, err := filepath.Glob("../../.cache/drivers/apt/usr/" + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s is not unpacked (run `make drivers`): %v", pattern, err)
		}
		path, err := filepath.Abs(found[0])
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	return []string{
		"LD_LIBRARY_PATH=" + filepath.Dir(find("lib/*/libodbc.so.2")), "PSQLODBC=" + find("lib/*/odbc/psqlodbcw.so"),
		"PERL5LIB=" + find("lib/*/perl5/5.*"), "PYTHONPATH=" + find("lib/python3/dist-packages"), "PYTHONDONTWRITEBYTECODE=1",
		"PHP=" + find("bin/php"), "PHP_EXTENSIONS=" + find("lib/php/20*"),
	}
}

// pythonUnpacked runs a program that needs what is unpacked.
func pythonUnpacked(program string) func(testing.TB) (args, env []string) {
	return func(t testing.TB) (args, env []string) {
		args, _ = python(program)
		return args, unpacked(t)
	}
}

// orm runs a library of node that builds on the driver pg.
func orm(library string) func(testing.TB) (args, env []string) {
	return func(t testing.TB) (args, env []string) {
		return []string{"node", "node/orms.js", library}, []string{"NODE_PATH=" + nodeModules(t)}
	}
}

// driver is a program that uses one driver.
type driver struct {
	name    string
	command func(t testing.TB) (args, env []string) // the part's name is the last argument
}

var drivers = []driver{
	{"psql", func(testing.TB) (args, env []string) { return python("psql.py") }},
	{"pgx", func(t testing.TB) (args, env []string) { return []string{goDrivers.path(t), "pgx"}, nil }},
	{"lib/pq", func(t testing.TB) (args, env []string) { return []string{goDrivers.path(t), "libpq"}, nil }},
	{"psycopg", func(testing.TB) (args, env []string) { return python("psycopg3.py") }},
	{"node pg", func(t testing.TB) (args, env []string) {
		return []string{"node", "node/pg.js"}, []string{"NODE_PATH=" + nodeModules(t)}
	}},
	{"postgres.js", func(t testing.TB) (args, env []string) {
		return []string{"node", "node/postgresjs.js"}, []string{"NODE_PATH=" + nodeModules(t)}
	}},
	{"pgjdbc", func(t testing.TB) (args, env []string) {
		// Optimise for a short run: it lasts only seconds.
		return []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", javaPrograms.path(t) + ":" + jdbcJar, "drivers.Pgjdbc"}, nil
	}},
	{"PDO", func(t testing.TB) (args, env []string) {
		// Without its configuration, which names another directory of extensions.
		return []string{"sh", "-c", `exec "$PHP" -n -d extension_dir="$PHP_EXTENSIONS" -d extension=pdo -d extension=pdo_pgsql php/pdo.php "$0"`}, unpacked(t)
	}},
	{"DBD::Pg", func(t testing.TB) (args, env []string) { return []string{"perl", "perl/dbdpg.pl"}, unpacked(t) }},
	{"psqlODBC", pythonUnpacked("odbc.py")},
	{"Django", pythonUnpacked("django_orm.py")},
	{"Knex", orm("knex")},
	{"pg-promise", orm("pg-promise")},
	{"Sequelize", orm("sequelize")},
	{"TypeORM", orm("typeorm")},
}
