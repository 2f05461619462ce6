package console

import (
	"crypto/rand"
	"fmt"
	"io"
	"sync"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/xdg-go/scram"

	"github.com/fencepost/fencepost/fencing"
)

const (
	mechanism = "SCRAM-SHA-256"
	// iterations is the default of Postgres (scram_iterations).
	iterations = 4096
)

// credential is what SCRAM verifies a password by. It is derived once for each password, because that takes as long for
// the server as for the client.
type credential struct {
	mu       sync.Mutex
	password string
	stored   scram.StoredCredentials
}

func (c *credential) of(password string) (scram.StoredCredentials, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.password == password && c.stored.Iters != 0 {
		return c.stored, nil
	}
	client, err := scram.SHA256.NewClient("", password, "")
	if err != nil { // SASLprep does not allow it: like libpq, take it as it is then
		if client, err = scram.SHA256.NewClientUnprepped("", password, ""); err != nil {
			return scram.StoredCredentials{}, err
		}
	}
	stored, err := client.GetStoredCredentialsWithError(scram.KeyFactors{Salt: rand.Text(), Iters: iterations})
	if err == nil {
		c.password, c.stored = password, stored
	}
	return stored, err
}

// Login authenticates the client and greets it. An error that is a *fencing.Refusal is to be sent as FATAL.
func (x *Session) Login() error {
	if len(x.client.Options) > 0 || x.client.Version > newestVersion {
		x.to.Send(&pgproto3.NegotiateProtocolVersion{NewestMinorProtocol: newestVersion, UnrecognizedOptions: x.client.Options})
	}
	_, password := x.console.Settings()
	if password == "" { // a reload has switched it off just now
		return io.EOF
	}
	if err := x.authenticate(password); err != nil {
		return err
	}
	for _, p := range x.parameters {
		x.to.Send(&pgproto3.ParameterStatus{Name: p[0], Value: p[1]})
	}
	x.parameters = append(x.parameters, [2]string{"transaction_read_only", "on"}) // which is asked for, and never reported
	return x.ready()
}

// authenticate lets in who knows the password, whatever user it names.
func (x *Session) authenticate(password string) error {
	server, err := scram.SHA256.NewServer(func(string) (scram.StoredCredentials, error) { return x.console.credential.of(password) })
	if err != nil {
		return fmt.Errorf("authenticate a client of the console: %w", err)
	}
	conversation := server.NewConversation()
	first, err := x.ask(pgproto3.AuthTypeSASL, &pgproto3.AuthenticationSASL{AuthMechanisms: []string{mechanism}})
	if err != nil {
		return err
	}
	begins, ok := first.(*pgproto3.SASLInitialResponse)
	if !ok || begins.AuthMechanism != mechanism {
		return violation("malformed SCRAM message")
	}
	challenge, err := conversation.Step(string(begins.Data))
	if err != nil {
		return violation("malformed SCRAM message")
	}
	second, err := x.ask(pgproto3.AuthTypeSASLContinue, &pgproto3.AuthenticationSASLContinue{Data: []byte(challenge)})
	if err != nil {
		return err
	}
	proves, ok := second.(*pgproto3.SASLResponse)
	if !ok {
		return violation("malformed SCRAM message")
	}
	final, err := conversation.Step(string(proves.Data))
	if err != nil || !conversation.Valid() {
		return &fencing.Refusal{
			SQLState: "28P01", Message: fmt.Sprintf("password authentication failed for user \"%s\"", fencing.ASCII(x.client.User)),
			Hint:     "The console of Fencepost has a password of its own (console.password in its configuration).",
			Verbatim: true,
		}
	}
	x.to.Send(&pgproto3.AuthenticationSASLFinal{Data: []byte(final)})
	x.to.Send(&pgproto3.AuthenticationOk{})
	return nil
}

// ask sends a request for authentication, and returns the answer.
func (x *Session) ask(kind uint32, request pgproto3.BackendMessage) (pgproto3.FrontendMessage, error) {
	x.to.Send(request)
	if err := x.to.SetAuthType(kind); err != nil {
		return nil, err
	}
	if err := x.flush(); err != nil {
		return nil, err
	}
	return x.next()
}
