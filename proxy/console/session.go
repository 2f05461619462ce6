package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencepost/fencepost/fencing"
)

const (
	// maxMessage bounds the body of a client's message, in bytes, as Postgres bounds messages without data.
	maxMessage = 10000
	// mostStatements and mostPortals bound what a client can keep here.
	mostStatements, mostPortals = 100, 10
	// sendAt is how many messages are kept until they are sent, which a client need not ask for.
	sendAt = 100
	// answerTimeout bounds the reading of a table.
	answerTimeout = 10 * time.Second
	// version is the server_version that drivers get. psql warns of one that is newer than itself.
	version = "15.0 (Fencepost)"
	// newestVersion is the newest version of the protocol that is spoken.
	newestVersion = 3<<16 | 2
	// textOID is the type text, whose binary format has the same bytes as its text format.
	textOID = 25
)

// Console is what operators connect to. Its fields do not change once it is in use.
type Console struct {
	// Settings returns the database that clients name to get the console, and its password. No one gets it while the
	// password is "".
	Settings func() (database, password string)
	Commands []Command
	// WriteTimeout bounds one write: a client that does not read is closed after it. 0 means 10 s.
	WriteTimeout time.Duration

	credential credential
}

// Is reports whether whoever connects to a database gets the console. A nil Console is never meant.
func (c *Console) Is(database string) bool {
	if c == nil {
		return false
	}
	name, password := c.Settings()
	return password != "" && database == name
}

// Client is what a client has said in its startup.
type Client struct {
	User, Application string
	Version           uint32   // of the protocol
	Options           []string // of the protocol, which it has asked for
}

// Session is one client of a console.
type Session struct {
	console    *Console
	client     Client
	conn       net.Conn
	to         *pgproto3.Backend
	parameters [][2]string
	statements map[string]statement
	portals    map[string]*portal
	kept       int  // messages that were not sent yet
	status     byte // of the transaction: 'I' or 'T'
	skips      bool // everything until a Sync, after an error
}

// portal is a statement that is being executed.
type portal struct {
	statement
	begun bool
	left  [][]string // the rows that were not sent yet
}

// Open returns the session of a client that has sent its startup on conn, which remains the caller's.
func (c *Console) Open(conn net.Conn, client Client) *Session {
	x := &Session{
		console: c, client: client, conn: conn, to: pgproto3.NewBackend(conn, conn), status: 'I',
		statements: map[string]statement{}, portals: map[string]*portal{},
		parameters: [][2]string{
			{"server_version", version}, {"server_encoding", "UTF8"}, {"client_encoding", "UTF8"}, {"application_name", client.Application},
			{"is_superuser", "off"}, {"session_authorization", client.User}, {"DateStyle", "ISO, MDY"}, {"IntervalStyle", "postgres"}, {"TimeZone", "UTC"},
			{"integer_datetimes", "on"}, {"standard_conforming_strings", "on"}, {"default_transaction_read_only", "on"}, {"in_hot_standby", "off"},
		},
	}
	x.to.SetMaxBodyLen(maxMessage)
	return x
}

// Serve answers until the client leaves, or reading from its connection fails. It calls asked for each message. The
// error is as that of Login.
func (x *Session) Serve(ctx context.Context, asked func()) error {
	for {
		message, err := x.next()
		if err != nil {
			return err
		}
		asked()
		switch message.(type) {
		case *pgproto3.Terminate:
			return nil
		case *pgproto3.Sync:
			x.skips = false
			if x.status == 'I' {
				clear(x.portals)
			}
			err = x.ready()
		case *pgproto3.Query, *pgproto3.FunctionCall: // which are whole exchanges
			if x.skips {
				continue
			}
			if err = x.fails(x.take(ctx, message)); err == nil {
				err = x.ready()
			}
		default:
			if !x.skips {
				refused := x.take(ctx, message)
				err = x.fails(refused)
				x.skips = refused != nil
			}
		}
		if err != nil {
			return err
		}
	}
}

// fails sends err if it is a *fencing.Refusal, and returns it otherwise.
func (x *Session) fails(err error) error {
	var r *fencing.Refusal
	if !errors.As(err, &r) {
		return err
	}
	return x.send(&pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: r.SQLState, Message: r.Text(), Hint: r.Hint})
}

// take answers one message. Its error is a *fencing.Refusal if the client can continue.
func (x *Session) take(ctx context.Context, message pgproto3.FrontendMessage) error {
	switch m := message.(type) {
	case *pgproto3.Query:
		return x.query(ctx, m.String)
	case *pgproto3.Parse:
		return x.parse(m.Name, m.Query)
	case *pgproto3.Bind:
		return x.bind(m)
	case *pgproto3.Describe:
		return x.describe(m)
	case *pgproto3.Execute:
		p := x.portals[m.Portal]
		if p == nil {
			return noPortal(m.Portal)
		}
		return x.run(ctx, p, int(m.MaxRows))
	case *pgproto3.Close:
		if m.ObjectType == 'S' {
			delete(x.statements, m.Name)
		} else {
			delete(x.portals, m.Name)
		}
		return x.send(&pgproto3.CloseComplete{})
	case *pgproto3.Flush:
		return x.flush()
	case *pgproto3.CopyData, *pgproto3.CopyDone, *pgproto3.CopyFail: // of a COPY that was not begun: as Postgres does
		return nil
	}
	return &fencing.Refusal{SQLState: "0A000", Message: "the console of Fencepost answers SHOW, and nothing else", Hint: helpHint}
}

func (x *Session) query(ctx context.Context, text string) error {
	all, err := read(text, x.console.Commands, x.parameters)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return x.send(&pgproto3.EmptyQueryResponse{})
	}
	for _, st := range all {
		if st.columns != nil {
			if err := x.sendColumns(st.columns); err != nil {
				return err
			}
		}
		if err := x.run(ctx, &portal{statement: st}, 0); err != nil {
			return err
		}
	}
	return nil
}

func (x *Session) parse(name, text string) error {
	all, err := read(text, x.console.Commands, x.parameters)
	_, replaces := x.statements[name]
	switch {
	case err != nil:
		return err
	case len(all) > 1:
		return &fencing.Refusal{SQLState: "42601", Message: "cannot insert multiple commands into a prepared statement", Verbatim: true}
	case replaces && name != "":
		return &fencing.Refusal{SQLState: "42P05", Message: fmt.Sprintf("prepared statement \"%s\" already exists", fencing.ASCII(name)), Verbatim: true}
	case !replaces && len(x.statements) >= mostStatements:
		return tooMany("prepared statements", mostStatements)
	}
	all = append(all, statement{}) // for an empty text
	x.statements[name] = all[0]
	return x.send(&pgproto3.ParseComplete{})
}

func (x *Session) bind(m *pgproto3.Bind) error {
	st, known := x.statements[m.PreparedStatement]
	_, replaces := x.portals[m.DestinationPortal]
	switch {
	case !known:
		return noStatement(m.PreparedStatement)
	case len(m.Parameters) > 0:
		return violation(fmt.Sprintf("bind message supplies %d parameters, but the prepared statement requires 0", len(m.Parameters)))
	case !replaces && len(x.portals) >= mostPortals:
		return tooMany("portals", mostPortals)
	}
	x.portals[m.DestinationPortal] = &portal{statement: st}
	return x.send(&pgproto3.BindComplete{})
}

func (x *Session) describe(m *pgproto3.Describe) error {
	st, known := x.statements[m.Name]
	switch {
	case m.ObjectType == 'S' && !known:
		return noStatement(m.Name)
	case m.ObjectType == 'S':
		if err := x.send(&pgproto3.ParameterDescription{}); err != nil {
			return err
		}
	case x.portals[m.Name] == nil:
		return noPortal(m.Name)
	default:
		st = x.portals[m.Name].statement
	}
	if st.columns == nil {
		return x.send(&pgproto3.NoData{})
	}
	return x.sendColumns(st.columns)
}

func (x *Session) sendColumns(names []string) error {
	fields := make([]pgproto3.FieldDescription, len(names))
	for i, name := range names {
		fields[i] = pgproto3.FieldDescription{Name: []byte(name), DataTypeOID: textOID, DataTypeSize: -1, TypeModifier: -1}
	}
	return x.send(&pgproto3.RowDescription{Fields: fields})
}

// run executes a portal, up to a number of rows; all if that is 0.
func (x *Session) run(ctx context.Context, p *portal, most int) error {
	if p.tag == "" {
		return x.send(&pgproto3.EmptyQueryResponse{})
	}
	if p.rows != nil && !p.begun {
		reading, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		var err error
		if p.left, err = p.rows(reading); err != nil {
			return &fencing.Refusal{SQLState: "58000", Message: fencing.ASCII(err.Error()), Hint: "Try again, and see the log of Fencepost."}
		}
	}
	p.begun = true
	for n := 0; len(p.left) > 0; n++ {
		if most > 0 && n == most {
			return x.send(&pgproto3.PortalSuspended{})
		}
		values := make([][]byte, len(p.left[0]))
		for i, v := range p.left[0] {
			if v != "" {
				values[i] = []byte(v)
			}
		}
		if err := x.send(&pgproto3.DataRow{Values: values}); err != nil {
			return err
		}
		p.left = p.left[1:]
	}
	if p.status != 0 {
		x.status = p.status
	}
	if p.forgets && p.drops == "" {
		clear(x.statements)
	} else if p.forgets {
		delete(x.statements, p.drops)
	}
	return x.send(&pgproto3.CommandComplete{CommandTag: []byte(p.tag)})
}

func (x *Session) ready() error {
	if err := x.send(&pgproto3.ReadyForQuery{TxStatus: x.status}); err != nil {
		return err
	}
	return x.flush()
}

// send keeps a message until the next flush, and flushes if many are kept: a client need never ask for that.
func (x *Session) send(message pgproto3.BackendMessage) error {
	x.to.Send(message)
	if x.kept++; x.kept < sendAt {
		return nil
	}
	return x.flush()
}

// flush sends the messages that are kept.
func (x *Session) flush() error {
	x.kept = 0
	timeout := x.console.WriteTimeout
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	_ = x.conn.SetWriteDeadline(time.Now().Add(timeout))
	return x.to.Flush()
}

// next reads a message.
func (x *Session) next() (pgproto3.FrontendMessage, error) {
	message, err := x.to.Receive()
	var broken net.Error
	if err == nil || errors.As(err, &broken) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return message, err
	}
	return nil, violation("invalid message: " + fencing.ASCII(err.Error()))
}

// violation is the error of a client that has violated the protocol.
func violation(message string) *fencing.Refusal {
	return &fencing.Refusal{SQLState: "08P01", Message: message, Verbatim: true}
}

func noStatement(name string) error {
	return &fencing.Refusal{SQLState: "26000", Message: fmt.Sprintf("prepared statement \"%s\" does not exist", fencing.ASCII(name)), Verbatim: true}
}

func noPortal(name string) error {
	return &fencing.Refusal{SQLState: "34000", Message: fmt.Sprintf("portal \"%s\" does not exist", fencing.ASCII(name)), Verbatim: true}
}

func tooMany(what string, most int) error {
	return &fencing.Refusal{
		SQLState: "53400", Message: fmt.Sprintf("the console of Fencepost keeps at most %d %s of a connection", most, what),
		Hint: "Close those that are not used any more.",
	}
}
