package system

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
)

const (
	startedNew = "a new process has been started"
	takenOver  = "the new process has taken over"
	notTaken   = "the new process does not take over: this one goes on"
	notStarted = "no new process is started"
)

// visitors are clients that connect, write, and leave, again and again, with nothing that tries again. Each error fails the test.
type visitors struct {
	visits atomic.Int64
	stop   func()
}

// visit starts n visitors at each address of a proxy.
func (h *cluster) visit(n int, dsns ...string) *visitors {
	h.t.Helper()
	v := &visitors{}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, dsn := range dsns {
		for range n {
			wg.Go(func() {
				for ctx.Err() == nil {
					if err := visit(dsn); err != nil {
						h.t.Errorf("after %d visits: %v", v.visits.Load(), err)
						return
					}
					v.visits.Add(1)
				}
			})
		}
	}
	v.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	h.t.Cleanup(v.stop)
	return v
}

func visit(dsn string) error {
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if _, err := conn.Exec(ctx, "INSERT INTO work VALUES ('visitor')"); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return conn.Close(ctx)
}

// more waits until there have been n more visits.
func (v *visitors) more(t testing.TB, n int64) {
	t.Helper()
	before := v.visits.Load()
	process.Eventually(t, process.Patience, "more visits", func() bool { return t.Failed() || v.visits.Load() >= before+n })
}

// awaitEnd waits until the first process of p has ended, and returns its exit code. Others may go on.
func awaitEnd(t testing.TB, p *process.Server) int {
	t.Helper()
	select {
	case <-p.Done:
	case <-time.After(process.Patience):
		t.Fatalf("the old process does not end:\n%s", process.Tail(p.Log()))
	}
	return p.Code
}

// TestAnUpgradeRefusesNobody: two processes take over from each other's predecessor under load. Clients that connect, write and leave
// over TCP and a Unix socket see no error. A leader goes on at the old process, and leads again through the new one.
func TestAnUpgradeRefusesNobody(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long, "SHUTDOWN_DELAY=10m"))
	path := socketIn(t)
	p := h.proxy("LISTEN=127.0.0.1:0, "+path, "LISTEN_MODE=0700", "UNFENCED=allow")
	overTCP := p.DSN(pgtest.App, h.db)
	tcp := p.Address
	p.Address = path
	v := h.visit(2, overTCP, p.DSN(pgtest.App, h.db))
	p.Address = tcp
	leader := h.join(p, "leader", "campaign", "wait")
	v.more(t, 20)
	p.Upgrade(t)
	v.more(t, 20)
	leader.must("INSERT INTO work VALUES ('leader, before')")
	other := h.join(p, "other")
	if other.show("role") != "follower" {
		t.Error("a worker at the new process leads beside the one at the old process")
	}
	if p.Ended() {
		t.Error("the old process has ended although it has a client")
	}
	other.leave()
	leader.leave()
	if code := awaitEnd(t, p); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p.Await(t, "the process before this one has ended")
	leader = h.join(p, "leader", "campaign", "wait")
	leader.must("INSERT INTO work VALUES ('leader, after')")
	leader.leave()
	p.Upgrade(t)
	v.more(t, 20)
	v.stop()
	if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeSocket|0o700 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	p.End()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket after the end: %v, want none", err)
	}
	if got := h.granted(); got != "leader leader" {
		t.Errorf("the grants: %s", got)
	}
}

// TestAnUpgradeDrains: without a shutdown_delay, the old process ends as at SIGTERM. A transaction ends in order, and then its leader
// is passed on: a connection of the worker that was made to the new process before that leads from then on, under the same epoch. A
// client that was in its startup is not refused.
func TestAnUpgradeDrains(t *testing.T) {
	t.Parallel()
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) { t.Parallel(); testAnUpgradeDrains(t, provider) })
	}
}

func testAnUpgradeDrains(t *testing.T, provider string) {
	h := newCluster(t, provider, with(long, "DRAIN_TIMEOUT=60s", "STARTUP_TIMEOUT=60s"))
	p := h.proxy()
	leader, idle := h.join(p, "leader", "campaign", "wait"), h.join(p, "idle")
	leader.must("BEGIN", "INSERT INTO work VALUES ('old')")
	slow, err := net.Dial("tcp", p.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	process.Eventually(t, process.Patience, "the old process to have accepted the slow client", func() bool {
		_, body := p.Get(t, "/v1/connections")
		return strings.Contains(body, `"client": "`+slow.LocalAddr().String()+`"`)
	})
	pid := p.Upgrade(t)
	config, err := pgx.ParseConfig(p.DSN(pgtest.App, h.db))
	if err != nil {
		t.Fatal(err)
	}
	config.DialFunc = func(context.Context, string, string) (net.Conn, error) { return slow, nil }
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	late, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatalf("a client that was in its startup: %v", err)
	}
	defer late.Close(ctx)
	process.Eventually(t, process.Patience, "the idle connection to be ended", func() bool { return idle.exec("SELECT 1") != nil })
	successor := h.join(p, "leader")
	if successor.show("role") != "follower" {
		t.Error("the worker leads through two processes")
	}
	for to, why := range map[int]string{p.PID(): fmt.Sprintf("process %d has taken over already: send the signal to it", pid),
		pid: "the process before this one has not ended yet: try again after its sessions have ended (shutdown_delay, drain_timeout)"} {
		if err := syscall.Kill(to, syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		p.Await(t, notStarted, "error", why)
	}
	leader.must("COMMIT")
	mustLead(t, successor, "the worker")
	successor.must("INSERT INTO work VALUES ('new')")
	leader.must("INSERT INTO work VALUES ('passed on')")
	if code := awaitEnd(t, p); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := strings.Join(h.works(), "; "); got != "old; new; passed on" || h.epoch() != 1 {
		t.Errorf("the table contains %q, and the epoch is %d", got, h.epoch())
	}
}

// TestCancelRequestsReachTheOldProcess: they come to the new one, and those that it cannot know are passed on. It returns when Postgres
// has processed the request, so that it cannot hit the next statement.
func TestCancelRequestsReachTheOldProcess(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long, "SHUTDOWN_DELAY=10m", "UNFENCED=allow"))
	p := h.proxy()
	old := h.mustPlain(p)
	p.Upgrade(t)
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	running := make(chan error, 1)
	for _, c := range []*client{old, h.mustPlain(p)} {
		go func() { running <- c.exec("SELECT pg_sleep(600)") }()
		process.Eventually(t, process.Patience, "the statement to run", func() bool {
			return ask[bool](h, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep')")
		})
		if err := c.PgConn().CancelRequest(ctx); err != nil {
			t.Error(err)
		}
		if err := <-running; stateOf(err) != "57014" {
			t.Errorf("the statement ends with %v", err)
		}
	}
	old.leave()
	awaitEnd(t, p)
	if err := old.PgConn().CancelRequest(ctx); err != nil {
		t.Errorf("a cancel request that nobody knows: %v", err)
	}
}

// TestAFailedUpgradeChangesNothing: whatever keeps a new process from serving, the old one says why and goes on.
func TestAFailedUpgradeChangesNothing(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long, "UPSTREAM_ADDRESS=", "CONTROL_USER=", "CONTROL_PROBE_DATABASE=", "LISTEN="))
	path := socketIn(t)
	listen := fmt.Sprintf("listen: ['127.0.0.1:0', '%s']\n", path)
	postgres := "upstream: {address: '" + h.pg.Addr() + "'}\n"
	role := "control: {user: " + pgtest.Control + ", probe_database: " + h.db + "}\n"
	p, write := h.configured(listen + postgres + role)
	leader := h.join(p, "leader", "campaign", "wait")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	failures := 0
	for name, c := range map[string]struct{ text, want string }{
		"an invalid configuration": {"lisen: 127.0.0.1:0\n", `unknown setting "lisen": did you mean "listen"?`},
		"no Postgres":              {listen + role + "upstream: {address: '" + ports.For(t).Address() + "'}\n", "it is not ready: upstream: "},
		"a role that is not there": {listen + postgres + "control: {user: nobody_knows, probe_database: " + h.db + "}\n", "it is not ready: control role: "},
		"an address that is taken": {strings.Replace(listen, "127.0.0.1:0", taken.Addr().String(), 1) + postgres + role, "address already in use"},
		"a schema that is missing": {listen + postgres + "control: {user: " + pgtest.Control + ", probe_database: postgres}\n", "it has faults that this process does not have: database postgres: "},
	} {
		write(c.text)
		p.Signal(t, syscall.SIGUSR2)
		failures++
		process.Eventually(t, process.Patience, "the new process to fail: "+name, func() bool { return len(p.Lines(notTaken)) == failures })
		if why := p.Lines(notTaken)[failures-1].Text("error"); !strings.Contains(why, c.want) {
			t.Errorf("%s: the log says %q, want %q", name, why, c.want)
		}
		leader.must("INSERT INTO work VALUES ('goes on')")
		for _, address := range []string{p.Address, path} {
			network := "tcp"
			if filepath.IsAbs(address) {
				network = "unix"
			}
			conn, err := net.Dial(network, address)
			if err != nil {
				t.Fatalf("%s: connect at %s: %v", name, address, err)
			}
			_ = conn.Close()
		}
		awaitOK(t, p, "/readyz")
	}
	write(listen + postgres + role)
	p.Upgrade(t)
}

// TestOneUpgradeAtATime: while a new process starts, a second signal starts no other one, and SIGTERM ends both.
func TestOneUpgradeAtATime(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long))
	path := filepath.Join(t.TempDir(), "fencepost.yml")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := h.proxy("CONFIG=" + path)
	leader := h.join(p, "leader", "campaign", "wait")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil { // from which the new process reads until it is ended
		t.Fatal(err)
	}
	p.Signal(t, syscall.SIGUSR2)
	pid := int(p.Await(t, startedNew).Number("pid"))
	p.Signal(t, syscall.SIGUSR2)
	p.Await(t, notStarted, "error", "a new process is starting already")
	leader.must("INSERT INTO work VALUES ('goes on')")
	p.Signal(t, syscall.SIGTERM)
	if code := p.Wait(t); code != 0 { // which returns when the log has ended, and with it the new process
		t.Errorf("exit code %d", code)
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Error("the new process is still there")
	}
	p.Await(t, "released", "worker", "leader", "reason", "left")
	if n := len(p.Lines(takenOver)); n > 0 {
		t.Error("the new process has taken over")
	}
}

// TestTheUnitReloadsOrUpgrades: systemctl reload runs the command of the unit, which reloads the configuration, or has the new program
// take over if the file of the program is another one.
func TestTheUnitReloadsOrUpgrades(t *testing.T) {
	t.Parallel()
	unit, err := os.ReadFile(filepath.Join("..", "..", "etc", "systemd", "fencepost.service"))
	if err != nil {
		t.Fatal(err)
	}
	const installed = "/usr/bin/fencepost"
	program := filepath.Join(t.TempDir(), "fencepost")
	install := func() { // as dpkg does
		t.Helper()
		if out, err := exec.Command("cp", process.Program(t), program+".new").CombinedOutput(); err != nil {
			t.Fatalf("cp: %v: %s", err, out)
		}
		if err := os.Rename(program+".new", program); err != nil {
			t.Fatal(err)
		}
	}
	install()
	h := newCluster(t, "postgres", with(long))
	p := process.ServeFrom(t, program, h.settings...)
	reload := func() {
		t.Helper()
		_, command, found := strings.Cut(string(unit), "\nExecReload=/bin/sh -c '")
		command, _, ended := strings.Cut(command, "'\n")
		if !found || !ended || !strings.Contains(command, installed) {
			t.Fatalf("the unit has no ExecReload of the expected form, but %q", command)
		}
		cmd := exec.Command("/bin/sh", "-c", strings.ReplaceAll(command, installed, program))
		cmd.Env = append(os.Environ(), fmt.Sprintf("MAINPID=%d", p.PID()))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	reload()
	p.Await(t, "configuration reloaded")
	install()
	reload()
	pid := p.Await(t, takenOver).Number("pid")
	if code := awaitEnd(t, p); code != 0 || len(p.Lines(startedNew)) != 1 {
		t.Errorf("exit code %d, and %d new processes", code, len(p.Lines(startedNew)))
	}
	if runs, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || runs != program {
		t.Errorf("the new process runs %s, %v", runs, err)
	}
	h.join(p, "leader", "campaign", "wait").must("INSERT INTO work VALUES ('through the new program')")
}

// TestAnUpgradeTellsSystemd which process is the main one, once. Only that process says that the service stops.
func TestAnUpgradeTellsSystemd(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long))
	path := filepath.Join(filepath.Dir(socketIn(t)), "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	mustHear := func(want string) {
		t.Helper()
		if err := systemd.SetReadDeadline(time.Now().Add(process.Patience)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 256)
		n, err := systemd.Read(buf)
		if err != nil || string(buf[:n]) != want {
			t.Fatalf("systemd is told %q, %v; want %q", buf[:n], err, want)
		}
	}
	setting := "NOTIFY_SOCKET=" + path
	p := process.Serve(t, append(h.settings, setting)...)
	mustHear("READY=1")
	pid := p.Upgrade(t)
	mustHear(fmt.Sprintf("MAINPID=%d\nREADY=1", pid))
	if code := awaitEnd(t, p); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p.End()
	mustHear("STOPPING=1")
	const last = "the end of what the processes have said"
	if _, err := systemd.WriteToUnix([]byte(last), systemd.LocalAddr().(*net.UnixAddr)); err != nil {
		t.Fatal(err)
	}
	mustHear(last)
}
