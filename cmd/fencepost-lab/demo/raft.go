package demo

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/scratch"
)

// raftNodes are the nodes. The first one is the demo's own Fencepost.
var raftNodes = []string{"one", "two", "three"}

// startRaft makes the nodes of three proxies, and starts the second and the third. The first one is
// the proxy that the demo shows, and starts later.
func startRaft(ctx context.Context, dir string, o Options) (_ *leaseService, err error) {
	files := filepath.Join(dir, "raft")
	if err := writeCertificate(files); err != nil {
		return nil, err
	}
	peers := make([]string, len(raftNodes))
	for i, name := range raftNodes {
		address, err := scratch.FreeAddress()
		if err != nil {
			return nil, err
		}
		peers[i] = name + "=" + address
	}
	part := func(name string) string {
		return fmt.Sprintf("  raft:\n    peers: [%s]\n    dir: %s\n    ca_file: %s\n    cert_file: %[3]s\n    key_file: %s\nproxy:\n  id: %s\n",
			strings.Join(peers, ", "), filepath.Join(files, name), filepath.Join(files, "node.crt"), filepath.Join(files, "node.key"), name)
	}
	s := &leaseService{what: "Raft among three proxies, " + strings.Join(peers, ", "), config: part(raftNodes[0])}
	defer func() {
		if err != nil && s.beneath != nil {
			err = errors.Join(err, s.beneath.stop())
		}
	}()
	for _, name := range []string{"two", "three", "one"} {
		action := "add"
		if s.beneath == nil {
			action = "bootstrap"
		}
		if err := startNode(ctx, s, filepath.Join(files, name), action, part(name), o); err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
	}
	s.proc, s.beneath = s.beneath.proc, s.beneath.beneath
	return s, nil
}

// startNode makes the directory of a node, and starts its proxy above those of s, unless it is the
// first one.
func startNode(ctx context.Context, s *leaseService, path, action, part string, o Options) error {
	listen, err := scratch.FreeAddress()
	if err != nil {
		return err
	}
	text := fmt.Sprintf("listen: %s\nadmin: \"\"\nupstream:\n  address: %s\nelection:\n  provider: raft\n%s", listen, o.upstream, part)
	if err := os.WriteFile(path+".yml", []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	if out, err := exec.CommandContext(ctx, o.Program, "raft", action, "--config", path+".yml").CombinedOutput(); err != nil {
		return fmt.Errorf("run fencepost raft %s: %w\n%s", action, err, out)
	}
	if filepath.Base(path) == raftNodes[0] {
		return nil
	}
	log, err := os.Create(path + ".log")
	if err != nil {
		return fmt.Errorf("create its log: %w", err)
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(o.Program, "serve", "--config", path+".yml")
	cmd.Env = append(os.Environ(), "FENCEPOST_CONTROL_PASSWORD="+o.password)
	cmd.Stdout, cmd.Stderr = log, log
	proc, err := scratch.Start("the proxy "+filepath.Base(path), cmd)
	if err == nil {
		s.beneath = &leaseService{proc: proc, beneath: s.beneath}
	}
	return err
}

// writeCertificate writes node.crt, which signs itself and is that of all nodes, and node.key.
func writeCertificate(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key for the nodes: %w", err)
	}
	draft := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "nodes of a demo"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        true, BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, draft, draft, key.Public(), key)
	if err != nil {
		return fmt.Errorf("make a certificate for the nodes: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("make a key for the nodes: %w", err)
	}
	return writeFiles(dir, map[string][]byte{
		"node.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		"node.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	})
}
