package kubernetestest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// keys are the authority of a server, which signs its certificate and those of users.
type keys struct {
	caFile string
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
}

// newKeys makes ca.crt, server.crt and server.key in dir, and accounts.key, with which the server
// signs the tokens of service accounts.
func newKeys(dir string) (*keys, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	k := &keys{key: key, caFile: filepath.Join(dir, "ca.crt")}
	template := certificate("test authority", "")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	ca, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if k.ca, err = x509.ParseCertificate(ca); err != nil {
		return nil, err
	}
	cert, certKey, err := k.issue("kube-apiserver", "")
	if err != nil {
		return nil, err
	}
	accounts, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	return k, errors.Join(
		os.WriteFile(k.caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca}), 0o600),
		os.WriteFile(filepath.Join(dir, "server.crt"), cert, 0o600),
		os.WriteFile(filepath.Join(dir, "server.key"), certKey, 0o600),
		os.WriteFile(filepath.Join(dir, "accounts.key"), pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(accounts)}), 0o600),
	)
}

func certificate(name, group string) *x509.Certificate {
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	if group != "" {
		c.Subject.Organization = []string{group}
	}
	return c
}

// issue makes a certificate for the server, or for a user in a group, and its key, as PEM.
func (k *keys) issue(name, group string) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := certificate(name, group)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	signed, err := x509.CreateCertificate(rand.Reader, template, k.ca, private.Public(), k.key)
	if err != nil {
		return nil, nil, err
	}
	bytes, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: bytes}), nil
}

// trust returns the TLS configuration of who trusts the authority.
func (k *keys) trust() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(k.ca)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}
