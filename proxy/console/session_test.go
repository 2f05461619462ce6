package console

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencepost/fencepost/fencing"
)

const testPassword = "pencil"

// served is a client's end of a session, and how the session has ended.
type served struct {
	net.Conn
	ended chan error
}

// serve serves one client of a console, as the proxy does.
func serve(t *testing.T, c *Console) served {
	t.Helper()
	client, server := net.Pipe()
	s := served{Conn: client, ended: make(chan error, 1)}
	if c.Settings == nil {
		c.Settings = func() (string, string) { return "fencepost", testPassword }
	}
	go func() {
		defer server.Close()
		packet, err := pgproto3.NewBackend(server, server).ReceiveStartupMessage()
		if err != nil {
			s.ended <- err
			return
		}
		startup := packet.(*pgproto3.StartupMessage)
		x := c.Open(server, Client{User: startup.Parameters["user"], Version: startup.ProtocolVersion})
		if err = x.Login(); err == nil {
			err = x.Serve(context.Background(), func() {})
		}
		var r *fencing.Refusal
		if errors.As(err, &r) {
			fatal, _ := (&pgproto3.ErrorResponse{Severity: "FATAL", Code: r.SQLState, Message: r.Text()}).Encode(nil)
			_, _ = server.Write(fatal)
		}
		s.ended <- err
	}()
	t.Cleanup(func() { _ = client.Close() })
	return s
}

// connect connects pgconn to a console.
func connect(t *testing.T, c *Console, password string) (*pgconn.PgConn, error) {
	t.Helper()
	cfg, err := pgconn.ParseConfig("host=console user=postgres database=fencepost sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, c)
	cfg.Password = password
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) { return s.Conn, nil }
	return pgconn.ConnectConfig(t.Context(), cfg)
}

func mustConnect(t *testing.T, c *Console) *pgconn.PgConn {
	t.Helper()
	conn, err := connect(t, c, testPassword)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// stateOf returns the SQLSTATE of an error.
func stateOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return fmt.Sprint(err)
}

func TestOnlyThePasswordLetsIn(t *testing.T) {
	t.Parallel()
	for _, password := range []string{testPassword, "pässwörd ", "with\ta tab"} {
		c := &Console{Settings: func() (string, string) { return "fencepost", password }}
		for _, given := range []string{password, password + "x", "", strings.ToUpper(password)} {
			conn, err := connect(t, c, given)
			switch {
			case given == password && err != nil:
				t.Errorf("%q: %v", given, err)
			case given == password:
				if err := conn.Close(t.Context()); err != nil {
					t.Error(err)
				}
			case given == "" && err == nil, given != "" && stateOf(err) != "28P01":
				t.Errorf("%q in place of %q: %v", given, password, err)
			}
		}
	}
}

// TestAPasswordIsReplaced by a reload, and without one no one is let in.
func TestAPasswordIsReplaced(t *testing.T) {
	t.Parallel()
	password := "first"
	c := &Console{Settings: func() (string, string) { return "fencepost", password }}
	for _, password = range []string{"first", "second", "first"} {
		if _, err := connect(t, c, password); err != nil {
			t.Errorf("%s: %v", password, err)
		}
		if _, err := connect(t, c, "third"); stateOf(err) != "28P01" {
			t.Errorf("a wrong password: %v", err)
		}
	}
	if password = ""; c.Is("fencepost") {
		t.Error("there is a console without a password")
	}
	if _, err := connect(t, c, ""); err == nil {
		t.Error("a client without a password was let in")
	}
	if password = "first"; !c.Is("fencepost") || c.Is("postgres") || (*Console)(nil).Is("fencepost") {
		t.Error("the console is taken for another database")
	}
}

// TestTheExtendedProtocol is used by most drivers, with the binary format too.
func TestTheExtendedProtocol(t *testing.T) {
	t.Parallel()
	conn := mustConnect(t, &Console{Commands: testCommands})
	for _, format := range []int16{pgproto3.TextFormat, pgproto3.BinaryFormat} {
		got := conn.ExecParams(t.Context(), "SHOW THINGS", nil, nil, nil, []int16{format}).Read()
		if got.Err != nil || got.CommandTag.String() != "SHOW" || len(got.Rows) != 2 || string(got.Rows[0][0]) != "a" || got.Rows[1][1] != nil {
			t.Errorf("format %d: %q %v %v", format, got.Rows, got.CommandTag, got.Err)
		}
	}
	d, err := conn.Prepare(t.Context(), "named", "SHOW THINGS", nil)
	if err != nil || len(d.ParamOIDs) > 0 || len(d.Fields) != 2 || d.Fields[1].Name != "size" || d.Fields[1].DataTypeOID != textOID {
		t.Fatalf("%+v, %v", d, err)
	}
	for want, run := range map[string]func() error{
		"<nil>": func() error { return conn.ExecPrepared(t.Context(), "named", nil, nil, nil).Read().Err },
		"26000": func() error { return conn.ExecPrepared(t.Context(), "unknown", nil, nil, nil).Read().Err },
		"08P01": func() error { return conn.ExecPrepared(t.Context(), "named", [][]byte{{1}}, nil, nil).Read().Err },
		"42P05": func() error { _, err := conn.Prepare(t.Context(), "named", "SHOW THINGS", nil); return err },
		"42601": func() error { _, err := conn.Prepare(t.Context(), "two", "SELECT 1; SELECT 1", nil); return err },
		"0A000": func() error { _, err := conn.Prepare(t.Context(), "write", "DELETE FROM t", nil); return err },
	} {
		if got := stateOf(run()); got != want || conn.IsClosed() {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if err := conn.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := conn.Exec(t.Context(), "DISCARD ALL").ReadAll(); err != nil {
		t.Error(err)
	}
	if got := stateOf(conn.ExecPrepared(t.Context(), "named", nil, nil, nil).Read().Err); got != "26000" {
		t.Errorf("a statement is left after DISCARD ALL: %s", got)
	}
}

// TestWhatAClientKeepsIsBounded: statements, and the length of a message.
func TestWhatAClientKeepsIsBounded(t *testing.T) {
	t.Parallel()
	conn := mustConnect(t, &Console{Commands: testCommands})
	for i := range mostStatements {
		if _, err := conn.Prepare(t.Context(), fmt.Sprint("s", i), "SHOW THINGS", nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Prepare(t.Context(), "more", "SHOW THINGS", nil); stateOf(err) != "53400" {
		t.Errorf("one more: %v", err)
	}
	if err := conn.Deallocate(t.Context(), "s1"); err != nil {
		t.Error(err)
	}
	if _, err := conn.Prepare(t.Context(), "more", "SHOW THINGS", nil); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	f, s := raw(t, &Console{Commands: testCommands})
	header := binary.BigEndian.AppendUint32([]byte{'Q'}, maxMessage+5) // counts itself
	if _, err := s.Write(header); err != nil {
		t.Fatal(err)
	}
	if m, err := f.Receive(); err != nil || m.(*pgproto3.ErrorResponse).Severity != "FATAL" || m.(*pgproto3.ErrorResponse).Code != "08P01" {
		t.Errorf("a message that is too long: %v, %v", m, err)
	}
}

// raw is a client that sends messages as it likes.
func raw(t *testing.T, c *Console) (*pgproto3.Frontend, served) {
	t.Helper()
	conn, s := mustConnect(t, c), served{}
	hijacked, err := conn.Hijack()
	if err != nil {
		t.Fatal(err)
	}
	s.Conn = hijacked.Conn
	return hijacked.Frontend, s
}

// exchange sends messages, and returns the types of what is answered up to a ReadyForQuery.
func exchange(t *testing.T, f *pgproto3.Frontend, messages ...pgproto3.FrontendMessage) (answers []string) {
	t.Helper()
	for _, m := range messages {
		f.Send(m)
	}
	sent := make(chan error, 1)
	go func() { sent <- f.Flush() }() // a pipe has no buffer
	for {
		m, err := f.Receive()
		if err != nil {
			t.Fatal(err)
		}
		answer := strings.TrimPrefix(fmt.Sprintf("%T", m), "*pgproto3.")
		if e, ok := m.(*pgproto3.ErrorResponse); ok {
			answer = e.Code
		}
		ready, ok := m.(*pgproto3.ReadyForQuery)
		if ok {
			answer = string(ready.TxStatus)
		}
		if answers = append(answers, answer); ok {
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			return answers
		}
	}
}

// TestBatches of the extended protocol: portals that are read in parts, errors up to the Sync, and transactions that are none.
func TestBatches(t *testing.T) {
	t.Parallel()
	f, _ := raw(t, &Console{Commands: testCommands})
	parse, bind, sync := &pgproto3.Parse{Query: "SHOW THINGS"}, &pgproto3.Bind{DestinationPortal: "p"}, &pgproto3.Sync{}
	one := &pgproto3.Execute{Portal: "p", MaxRows: 1}
	for _, c := range []struct {
		what string
		send []pgproto3.FrontendMessage
		want string
	}{
		{"in parts", []pgproto3.FrontendMessage{parse, bind, one, one, one, sync},
			"ParseComplete BindComplete DataRow PortalSuspended DataRow CommandComplete CommandComplete I"},
		{"a portal ends with its batch", []pgproto3.FrontendMessage{one, sync}, "34000 I"},
		{"nothing behind an error", []pgproto3.FrontendMessage{one, parse, bind, &pgproto3.Query{String: "SELECT 1"}, sync}, "34000 I"},
		{"a transaction", []pgproto3.FrontendMessage{&pgproto3.Query{String: "BEGIN"}}, "CommandComplete T"},
		{"begins a portal", []pgproto3.FrontendMessage{parse, bind, one, sync}, "ParseComplete BindComplete DataRow PortalSuspended T"},
		{"which goes on", []pgproto3.FrontendMessage{&pgproto3.Describe{ObjectType: 'P', Name: "p"}, one, sync}, "RowDescription DataRow CommandComplete T"},
		{"until it is closed", []pgproto3.FrontendMessage{&pgproto3.Close{ObjectType: 'P', Name: "p"}, one, sync}, "CloseComplete 34000 T"},
		{"and ends", []pgproto3.FrontendMessage{&pgproto3.Query{String: "COMMIT"}}, "CommandComplete I"},
		{"an empty text", []pgproto3.FrontendMessage{&pgproto3.Parse{Query: "-- ping"}, bind, &pgproto3.Describe{ObjectType: 'P', Name: "p"}, one, sync},
			"ParseComplete BindComplete NoData EmptyQueryResponse I"},
		{"a function", []pgproto3.FrontendMessage{&pgproto3.FunctionCall{Function: 1}}, "0A000 I"},
		{"a COPY that was not begun", []pgproto3.FrontendMessage{&pgproto3.CopyDone{}, &pgproto3.Query{String: ""}}, "EmptyQueryResponse I"},
		{"several statements", []pgproto3.FrontendMessage{&pgproto3.Query{String: "SELECT 1; BEGIN; SET a = 1; ROLLBACK"}},
			"RowDescription DataRow CommandComplete CommandComplete CommandComplete CommandComplete I"},
	} {
		if got := strings.Join(exchange(t, f, c.send...), " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// TestPortalsAreBounded, because each may keep a table.
func TestPortalsAreBounded(t *testing.T) {
	t.Parallel()
	f, _ := raw(t, &Console{Commands: testCommands})
	send := []pgproto3.FrontendMessage{&pgproto3.Parse{Query: "SHOW THINGS"}}
	for i := range mostPortals + 1 {
		send = append(send, &pgproto3.Bind{DestinationPortal: fmt.Sprint("p", i)})
	}
	got := exchange(t, f, append(send, &pgproto3.Sync{})...)
	if want := "ParseComplete" + strings.Repeat(" BindComplete", mostPortals) + " 53400 I"; strings.Join(got, " ") != want {
		t.Errorf("%v", got)
	}
}

// TestAClientThatDoesNotReadIsClosed after the timeout of a write, also in the middle of a table.
func TestAClientThatDoesNotReadIsClosed(t *testing.T) {
	t.Parallel()
	many := Command{Name: "many", Columns: []string{"n"}, Rows: func(context.Context) ([][]string, error) {
		return make([][]string, 100000), nil
	}}
	c := &Console{Commands: []Command{many}, WriteTimeout: 200 * time.Millisecond}
	f, s := raw(t, c)
	f.Send(&pgproto3.Query{String: "SHOW MANY"})
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * c.WriteTimeout) // during which nothing is read
	n, err := io.Copy(io.Discard, s.Conn)
	if err != nil || n > 1<<20 {
		t.Errorf("%d bytes, and then %v", n, err)
	}
}

// TestAnswersAreSentUnasked: they do not pile up until a client asks for them (Sync, Flush), which it need never do.
func TestAnswersAreSentUnasked(t *testing.T) {
	t.Parallel()
	f, s := raw(t, &Console{Commands: testCommands})
	f.Send(&pgproto3.Parse{Query: "SHOW THINGS"})
	for range 10 * sendAt {
		f.Send(&pgproto3.Describe{ObjectType: 'S'})
	}
	if err := s.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- f.Flush() }() // a pipe has no buffer
	for n := range 19 * sendAt {
		if _, err := f.Receive(); err != nil {
			t.Fatalf("answer %d: %v", n, err)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// TestAFailureOfATableIsReported, and the client continues.
func TestAFailureOfATableIsReported(t *testing.T) {
	t.Parallel()
	conn := mustConnect(t, &Console{Commands: []Command{{Name: "broken", Columns: []string{"a"}, Rows: func(context.Context) ([][]string, error) {
		return nil, errors.New("it is broken")
	}}}})
	if _, err := conn.Exec(t.Context(), "SHOW BROKEN").ReadAll(); stateOf(err) != "58000" || !strings.Contains(err.Error(), "it is broken") {
		t.Error(err)
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1").ReadAll(); err != nil {
		t.Error(err)
	}
}

// FuzzMessages sends what it likes after the login: the session ends, without a panic.
func FuzzMessages(f *testing.F) {
	f.Add([]byte("Q\x00\x00\x00\x10SHOW THINGS\x00"))
	f.Add([]byte("P\x00\x00\x00\x0e\x00SELECT 1\x00\x00\x00B\x00\x00\x00\x0c\x00\x00\x00\x00\x00\x01\x00\x00E\x00\x00\x00\x09\x00\x00\x00\x00\x01S\x00\x00\x00\x04"))
	f.Add([]byte("B\x00\x00\x00\x0e\x00\x00\xff\xff\x00\x00\xff\xff\x00\x00"))
	f.Add([]byte("F\x00\x00\x00\x08\x00\x00\x00\x01\xff\xff\xff\xff\xff"))
	f.Add([]byte("D\x00\x00\x00\x06S\x00C\x00\x00\x00\x06P\x00"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		client, server := net.Pipe()
		c := &Console{Commands: testCommands, Settings: func() (string, string) { return "fencepost", testPassword }}
		x := c.Open(server, Client{User: "fuzz"})
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer server.Close()
			if x.Serve(context.Background(), func() {}) == nil && len(sent) == 0 {
				t.Error("it has ended without a message")
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, client) }()
		_, _ = client.Write(sent)
		_ = client.Close()
		<-done
	})
}
