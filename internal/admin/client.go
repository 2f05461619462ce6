package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
)

// Client asks a running proxy at its admin address. The zero value asks no one.
type Client struct {
	Address string // host:port, or https://host:port
	token   string
	tls     *tls.Config // nil means that of the system
}

// ClientFlags are the flags that make a Client.
type ClientFlags struct{ address, caFile, certFile, keyFile, tokenFile, token string }

// Add adds the flags. address is the default address.
func (f *ClientFlags) Add(fs *flag.FlagSet, getenv func(string) string, address string) {
	f.token = getenv("FENCEPOST_ADMIN_TOKEN")
	fs.StringVar(&f.address, "admin", cmp.Or(getenv("FENCEPOST_ADMIN_ADDRESS"), getenv("FENCEPOST_ADMIN"), address),
		"admin `address` of a running Fencepost, with https:// in front if it is under TLS")
	fs.StringVar(&f.tokenFile, "token-file", getenv("FENCEPOST_ADMIN_TOKEN_FILE"), "`file` with the token of the admin address; FENCEPOST_ADMIN_TOKEN can hold the token itself")
	fs.StringVar(&f.caFile, "ca-file", "", "`file` with the authority for the certificate of the admin address; by default the system's authorities")
	fs.StringVar(&f.certFile, "cert-file", "", "`file` with a client certificate")
	fs.StringVar(&f.keyFile, "key-file", "", "`file` with the private key of that certificate")
}

// Client returns the client, once the flags were parsed. Its errors are those of the user.
func (f *ClientFlags) Client() (*Client, error) {
	c := &Client{Address: f.address, token: f.token}
	if f.tokenFile != "" {
		text, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		c.token = strings.TrimSpace(string(text))
	}
	if (f.certFile == "") != (f.keyFile == "") {
		return nil, errors.New("--cert-file and --key-file belong together: give both or neither")
	}
	if f.caFile == "" && f.certFile == "" {
		return c, nil
	}
	if !strings.HasPrefix(c.Address, "https://") {
		return nil, fmt.Errorf("--admin is %q, which is not under TLS: use https://host:port, or leave out --ca-file, --cert-file and --key-file", c.Address)
	}
	c.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	if f.caFile != "" {
		text, err := os.ReadFile(f.caFile)
		if err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
		c.tls.RootCAs = x509.NewCertPool()
		if !c.tls.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--ca-file: %s contains no certificate", f.caFile)
		}
	}
	if f.certFile != "" {
		pair, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
		if err != nil {
			return nil, fmt.Errorf("--cert-file: %w", err)
		}
		c.tls.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Ask sends a request without a body, and decodes the response, which must have one of the
// accepted statuses.
func (c *Client) Ask(ctx context.Context, method, path string, into any, accepted ...int) error {
	url := c.Address
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	req, err := http.NewRequestWithContext(ctx, method, url+path, nil)
	if err != nil {
		return fmt.Errorf("--admin is %q: use host:port or https://host:port", c.Address)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	client := http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: c.tls, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("query the admin address (--admin, or the server's setting admin): %w", err)
	}
	defer resp.Body.Close()
	body := json.NewDecoder(io.LimitReader(resp.Body, 64<<20))
	if !slices.Contains(accepted, resp.StatusCode) {
		var refused struct{ Error string }
		if body.Decode(&refused) == nil && refused.Error != "" {
			return fmt.Errorf("query the admin address %s: %s: %s", c.Address, resp.Status, refused.Error)
		}
		return fmt.Errorf("query the admin address %s: unexpected status %s; is it a Fencepost?", c.Address, resp.Status)
	}
	if err := body.Decode(into); err != nil {
		return fmt.Errorf("decode the response of %s: %w", c.Address, err)
	}
	return nil
}
