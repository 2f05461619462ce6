// Package imports contains no code, only the rules about which package may import
// which. ARCHITECTURE.md shows them as a diagram.
package imports

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/fencepost/fencepost"

// ours lists which of this module's packages (by path below the module) each of its
// packages may import outside tests; "..." stands for all of them. The longest matching
// prefix applies.
var ours = map[string][]string{
	"fencing":             {},
	"fencing/sqltext":     {"fencing"},
	"fencing/owner":       {},
	"fencing/catalog":     {"fencing"},
	"fencing/store":       {"fencing", "fencing/owner", "internal/faults", "internal/unpinged"},
	"fencing/fence":       {"fencing", "fencing/catalog", "fencing/store", "internal/faults"},
	"fencing/operator":    {"fencing", "fencing/fence", "internal/unpinged"},
	"fencing/evidence":    {"fencing", "fencing/owner"},
	"fencing/handover":    {"fencing"},
	"election":            {"election/boottime", "election/elector", "election/offer", "election/orders", "election/own", "election/patience", "election/status", "fencing", "internal/faults", "internal/lockorder"},
	"election/anyone":     {"election/elector"},
	"election/boottime":   {},
	"election/own":        {},
	"election/offer":      {},
	"election/orders":     {"fencing"},
	"election/status":     {"election/elector", "fencing"},
	"election/patience":   {"internal/lockorder"},
	"election/elector":    {"fencing", "internal/faults"},
	"election/consul":     {"election/elector", "election/kv", "internal/faults", "internal/files"},
	"election/etcd":       {"election/elector", "election/kv", "internal/faults", "internal/files"},
	"election/kubernetes": {"election/elector", "election/kv", "election/standstill", "internal/faults", "internal/files"},
	"election/zookeeper":  {"election/elector", "election/kv", "election/standstill", "internal/faults", "internal/files"},
	"election/kv":         {"election/elector", "internal/faults"},
	"election/postgres":   {"election/boottime", "election/elector", "fencing", "internal/faults", "internal/unpinged"},
	"election/raft":       {"election/elector", "election/kv", "election/raft/disk", "election/raft/state", "election/standstill", "internal/faults", "internal/files"},
	"election/raft/disk":  {},
	"election/raft/state": {},
	"election/redis":      {"election/elector", "election/kv", "internal/faults", "internal/files"},
	"election/standstill": {"election/boottime", "election/elector", "election/kv"},
	"election/token":      {"election/elector", "fencing"},
	"election/electiontest": {
		"election", "election/boottime", "election/elector", "election/kv", "election/status", "fencing", "fencing/fence", "fencing/store", "migrations", "internal/faults", "internal/files", "internal/pgtest", "internal/consultest", "internal/stopwatch",
	},
	"upstream": {"fencing", "proxy/pgtls"},
	"proxy": {
		"fencing", "fencing/sqltext", "internal/faults", "internal/lockorder", "proxy/console", "proxy/workers", "proxy/fairqueue", "proxy/gate", "proxy/handshake", "proxy/netloop", "proxy/pgtls", "proxy/proxyheader", "proxy/protocol", "proxy/refusals",
		"proxy/shadow", "proxy/slots", "proxy/startup", "proxy/wire", "upstream",
	},
	"proxy/protocol":               {"fencing", "fencing/sqltext", "proxy/gate", "proxy/shadow", "proxy/wire"},
	"proxy/shadow":                 {"fencing", "fencing/sqltext", "proxy/gate", "proxy/wire"},
	"proxy/refusals":               {"fencing", "internal/faults", "proxy/pgtls", "proxy/protocol", "proxy/wire", "upstream"},
	"proxy/workers":                {"fencing", "internal/lockorder"},
	"proxy/handshake":              {"fencing", "proxy/gate", "proxy/netloop", "proxy/pgtls", "proxy/protocol", "proxy/refusals", "proxy/wire", "upstream"},
	"proxy/startup":                {"fencing", "proxy/netloop", "proxy/pgtls", "proxy/refusals", "proxy/unixsocket", "proxy/wire"},
	"proxy/console":                {"fencing", "fencing/sqltext"},
	"proxy/wire":                   {},
	"proxy/netloop":                {},
	"proxy/slots":                  {},
	"proxy/fairqueue":              {},
	"proxy/pgtls":                  {"internal/files", "proxy/netloop", "proxy/wire"},
	"proxy/proxyheader":            {"proxy/netloop"},
	"proxy/unixsocket":             {},
	"proxy/gate":                   {"fencing", "fencing/sqltext"},
	"migrations":                   {"fencing/owner", "internal/lockwait"},
	"cmd/fencepost":                {"..."},
	"cmd/fencepost-lab":            {"cmd/fencepost-lab/demo", "cmd/fencepost-lab/playground", "election/elector", "election/anyone", "fencing", "fencing/fence", "internal/config", "internal/electors", "internal/service"},
	"internal/service":             {"..."},
	"internal/table":               {"fencing", "internal/admin", "internal/config", "proxy"},
	"internal/config":              {"internal/files", "internal/routes", "election", "fencing"},
	"internal/admin":               {"internal/audit/rejections", "internal/web", "election", "election/status", "election/elector", "fencing", "proxy", "proxy/refusals", "internal/faults", "upstream"},
	"internal/audit/auditlog":      {"fencing", "fencing/sqltext"},
	"internal/service/health":      {"election", "election/status", "election/elector", "fencing/store", "internal/faults"},
	"internal/doctor":              {"internal/config", "election/elector", "fencing", "fencing/evidence", "fencing/fence", "fencing/owner", "fencing/store", "internal/faults", "internal/lockwait", "migrations", "upstream"},
	"internal/electors":            {"internal/config", "election/elector", "election/consul", "election/etcd", "election/kubernetes", "election/postgres", "election/raft", "election/redis", "election/zookeeper", "fencing/fence"},
	"cmd/fencepost-lab/demo":       {"internal/admin", "cmd/fencepost-lab/scratch"},
	"internal/audit/evidence":      {"fencing", "fencing/evidence"},
	"internal/guard":               {"fencing/owner"},
	"internal/service/hosts":       {"internal/config", "fencing", "fencing/fence", "fencing/store", "migrations", "proxy/pgtls", "upstream"},
	"cmd/fencepost-lab/playground": {"cmd/fencepost-lab/playground/textbook", "cmd/fencepost-lab/scratch", "internal/web", "migrations"},
	"internal/service/recorded":    {"internal/admin", "internal/guard", "election", "election/status", "fencing", "fencing/fence", "fencing/owner", "internal/lockwait"},
	"internal/audit/rejections":    {"fencing", "fencing/owner", "fencing/evidence", "fencing/sqltext", "internal/faults"},
	"internal/service/reload":      {"internal/config"},
	"internal/service/upgrade":     {"internal/faults"},
	"internal/routes":              {"fencing"},
	"cmd/fencepost-lab/scratch":    {"internal/child"},
	"internal/web":                 {},
	"internal/child":               {},
	"internal/faults":              {},
	"internal/files":               {},
	"internal/lockorder":           {},
	"internal/lockwait":            {},
	"internal/pgtest":              {"migrations", "internal/child", "internal/ports", "internal/stopwatch"},
	"internal/ports":               {},
	"internal/servertest":          {"internal/child"},
	"internal/consultest":          {"internal/servertest", "internal/ports", "internal/stopwatch"},
	"internal/etcdtest":            {"internal/servertest", "internal/ports", "internal/stopwatch"},
	"internal/redistest":           {"internal/servertest", "internal/ports", "internal/stopwatch"},
	"internal/rafttest":            {"election", "election/raft", "internal/files", "internal/fixture/process", "internal/pgtest", "internal/ports"},
	"internal/kubernetestest":      {"internal/servertest", "internal/etcdtest", "internal/ports"},
	"fencing/fence/fencetest":      {"fencing", "fencing/fence", "fencing/store", "internal/fixture", "internal/pgtest"},
	"internal/fixture":             {"internal/guard", "fencing", "fencing/fence", "fencing/store", "proxy", "proxy/pgtls", "upstream", "internal/fixture/process", "internal/pgtest", "internal/wiretest"},
	"internal/zookeepertest":       {"internal/servertest", "internal/ports", "internal/stopwatch"},
	"internal/fixture/process":     {"fencing", "internal/child", "internal/pgtest", "internal/stopwatch"},
	"internal/stopwatch":           {},
	"internal/unpinged":            {},
	"internal/wiretest":            {},
	"internal/wiretest/short":      {"internal/wiretest"},
	"internal/netlooptest":         {"proxy/netloop", "internal/wiretest"},
	"internal/imports":             {},
	"scripts":                      {},
	"scripts/bench":                {"internal/child"},
}

// inTests are packages that only tests may import.
var inTests = []string{"internal/pgtest", "internal/servertest", "internal/consultest", "internal/etcdtest", "internal/kubernetestest", "internal/rafttest", "internal/redistest", "internal/zookeepertest", "internal/fixture", "internal/fixture/process", "internal/wiretest", "internal/wiretest/short", "internal/ports", "internal/netlooptest", "internal/stopwatch", "internal/service/servicetest", "election/electiontest", "fencing/fence/fencetest"}

// theirs lists the places that may import a library, or a provider of leases, outside
// tests. A name that ends in .go is one file.
var theirs = map[string][]string{
	module + "/election/anyone":           {"cmd/fencepost-lab/proxy.go"}, // never in a configuration
	module + "/election/consul":           {"internal/electors/consul.go"},
	module + "/election/etcd":             {"internal/electors/etcd.go"},
	module + "/election/kubernetes":       {"internal/electors/kubernetes.go"},
	module + "/election/kv":               {"election/consul", "election/electiontest", "election/etcd", "election/kubernetes", "election/raft", "election/redis", "election/standstill", "election/zookeeper"},
	module + "/election/postgres":         {"internal/electors/postgres.go"},
	module + "/election/raft":             {"election/raft", "internal/electors/raft.go", "cmd/fencepost/raft.go", "internal/rafttest"},
	module + "/election/redis":            {"internal/electors/redis.go"},
	module + "/election/zookeeper":        {"internal/electors/zookeeper.go"},
	module + "/election/token":            {"internal/service/service.go", "cmd/fencepost/generation.go"},
	"github.com/go-zookeeper/zk":          {"election/zookeeper", "internal/zookeepertest"},
	"github.com/gomodule/redigo":          {"election/redis", "internal/redistest"},
	"github.com/hashicorp/consul/api":     {"election/consul"},
	"github.com/hashicorp/go-hclog":       {"election/raft/log.go"},
	"github.com/hashicorp/raft":           {"election/raft", "election/raft/disk"},
	"github.com/jackc/pgproto3/v2":        {"proxy/wire/messages.go"},
	"github.com/pganalyze/pg_query_go/v6": {"fencing/sqltext"},
	"github.com/pires/go-proxyproto":      {"proxy/proxyheader"},
	"github.com/prometheus/client_golang": {"internal/admin"},
	"github.com/xdg-go/scram":             {"proxy/console/login.go"},
	"go.etcd.io/bbolt":                    {"election/raft/disk"},
	"go.etcd.io/etcd/client/v3":           {"election/etcd", "internal/etcdtest"},
	"go.yaml.in/yaml/v3":                  {"internal/config", "election/kubernetes/kubeconfig.go"},
}

type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
}

// name returns the path below the module, or "" for other packages.
func name(importPath string) string {
	rest, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	return rest
}

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,Imports", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatalf("decode go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
}

func TestPackagesImportOnlyWhatTheyMay(t *testing.T) {
	t.Parallel()
	pkgs := list(t)
	if len(pkgs) < 5 {
		t.Fatalf("go list found %d packages", len(pkgs))
	}
	for _, p := range pkgs {
		for _, fault := range faults(p) {
			t.Error(fault)
		}
	}
}

func TestLibrariesAreImportedInOnePlace(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		for library, places := range theirs {
			where := name(p.ImportPath)
			for _, file := range importers(t, p, library) {
				if !slices.ContainsFunc(places, func(place string) bool { return allowedPlace(where, file, place) }) {
					t.Errorf("%s/%s imports %s, which only %s may", where, file, library, strings.Join(places, " and "))
				}
			}
		}
	}
}

// TestTheDomainNeedsNothing checks that package fencing depends only on the standard
// library, and that the elections link no SQL parser.
func TestTheDomainNeedsNothing(t *testing.T) {
	t.Parallel()
	for _, p := range depsOf(t, "./fencing") {
		if strings.Contains(p, ".") && p != module+"/fencing" {
			t.Errorf("package fencing depends on %s", p)
		}
	}
	for _, p := range depsOf(t, "./election/...") {
		if strings.Contains(p, "pg_query") || p == module+"/fencing/sqltext" {
			t.Errorf("the elections depend on %s", p)
		}
	}
}

// TestTheProgramIsWhatServes: what shows Fencepost, and what tests it, is no part of the program.
func TestTheProgramIsWhatServes(t *testing.T) {
	t.Parallel()
	for _, p := range depsOf(t, "./cmd/fencepost") {
		if where := name(p); strings.HasPrefix(where, "cmd/fencepost-lab") || where == "election/anyone" || slices.Contains(inTests, where) {
			t.Errorf("the program fencepost depends on %s", p)
		}
	}
}

// TestTheProtocolIsPure checks that the packages that decide about each message do not
// wait, do no I/O and read no clock, so that they can be tested in isolation.
func TestTheProtocolIsPure(t *testing.T) {
	t.Parallel()
	pure := map[string]bool{"proxy/protocol": true, "proxy/shadow": true, "proxy/gate": true, "proxy/wire": true}
	for _, p := range list(t) {
		if !pure[name(p.ImportPath)] {
			continue
		}
		delete(pure, name(p.ImportPath))
		for _, i := range p.Imports {
			switch root, _, _ := strings.Cut(i, "/"); root {
			case "context", "net", "os", "sync", "syscall", "time":
				t.Errorf("package %s imports %s", p.ImportPath, i)
			}
		}
	}
	if len(pure) > 0 {
		t.Errorf("not found: %v", pure)
	}
}

// TestTheElectionsDecidePurely checks that the file that decides what a candidacy does next can only do that.
func TestTheElectionsDecidePurely(t *testing.T) {
	t.Parallel()
	file := filepath.Join(root, "election", "decide.go")
	for _, library := range []string{"context", "go.uber.org/zap", "math/rand/v2", "sync"} {
		if fileImports(t, file, library) {
			t.Errorf("%s imports %s", file, library)
		}
	}
}

// depsOf lists the import paths that a pattern of packages depends on, including the
// packages themselves but not the vendored packages of the standard library.
func depsOf(t *testing.T, pattern string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", pattern)
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps %s: %v", pattern, err)
	}
	deps := slices.DeleteFunc(strings.Fields(string(out)), func(p string) bool { return strings.HasPrefix(p, "vendor/") })
	if len(deps) < 2 {
		t.Fatalf("go list -deps %s names %v", pattern, deps)
	}
	return deps
}

func TestTheRuleCanFail(t *testing.T) {
	t.Parallel()
	for _, p := range []pkg{
		{ImportPath: module + "/proxy", Imports: []string{module + "/election"}},
		{ImportPath: module + "/election", Imports: []string{module + "/proxy"}},
		{ImportPath: module + "/fencing", Imports: []string{module + "/fencing/store"}},
		{ImportPath: module + "/cmd/fencepost", Imports: []string{module + "/internal/pgtest"}},
		{ImportPath: module + "/somewhere/new", Imports: []string{module + "/fencing"}},
	} {
		if len(faults(p)) != 1 {
			t.Errorf("%s importing %v: faults %v, want one", p.ImportPath, p.Imports, faults(p))
		}
	}
	if allowedPlace("proxy/wire", "frame.go", "proxy/wire/messages.go") || !allowedPlace("proxy/wire", "messages.go", "proxy/wire/messages.go") {
		t.Error("the rule for single files does not work")
	}
}

// faults returns what is wrong with the imports of p.
func faults(p pkg) []string {
	var found []string
	where := name(p.ImportPath)
	allowed, known := rule(where)
	for _, imp := range p.Imports {
		what := name(imp)
		switch {
		case what == "":
		case !known:
			found = append(found, where+" has no rule in internal/imports: add one")
		case slices.Contains(inTests, what) && !slices.Contains(inTests, where):
			found = append(found, where+" imports "+what+", which only tests may")
		case slices.Contains(allowed, what), slices.Contains(allowed, "..."), strings.HasPrefix(what, where+"/internal/"):
		default:
			found = append(found, where+" imports "+what)
		}
	}
	return found
}

// rule returns what the package may import, according to the longest prefix that has a
// rule.
func rule(where string) ([]string, bool) {
	for prefix := where; prefix != "."; prefix = filepath.Dir(prefix) {
		if allowed, ok := ours[prefix]; ok {
			return allowed, true
		}
	}
	return nil, false
}

// importers returns the files of p that import library or a package below it.
func importers(t *testing.T, p pkg, library string) []string {
	t.Helper()
	if !slices.ContainsFunc(p.Imports, func(s string) bool { return s == library || strings.HasPrefix(s, library+"/") }) {
		return nil
	}
	var files []string
	for _, file := range p.GoFiles {
		if fileImports(t, filepath.Join(p.Dir, file), library) {
			files = append(files, file)
		}
	}
	return files
}

func allowedPlace(where, file, place string) bool {
	if strings.HasSuffix(place, ".go") {
		return where+"/"+file == place
	}
	return where == place || strings.HasPrefix(where, place+"/") && place != "fencing"
}
