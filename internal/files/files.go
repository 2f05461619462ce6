// Package files reads files again when they change: certificates, keys, and other secrets that
// are renewed under a running proxy.
package files

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// lookAgain is how long files that were read are taken for unchanged.
const lookAgain = time.Second

// Watched is a value made of files. It is made again when they change, so
// that certificates can be renewed under a running proxy. What cannot be read or
// used is logged, and the last good value holds. It may be used by several
// goroutines.
type Watched[T any] struct {
	what  string   // the files are, in the log: "TLS files"
	paths []string // "" is a file that is not used
	build func(contents [][]byte) (T, error)
	log   *zap.Logger

	mu struct {
		sync.Mutex
		value    T
		contents [][]byte // of which value was made, or which were refused
		looked   time.Time
		refused  error // why value was not made of them, nil if it was
		fault    error // what is wrong with the files at present, nil if nothing is
	}
}

// Watch reads the files once; what is wrong with them then is an error. what
// names them in the log, such as "TLS files". A path may be "", and then has no
// contents.
func Watch[T any](log *zap.Logger, what string, build func(contents [][]byte) (T, error), paths ...string) (*Watched[T], error) {
	w := &Watched[T]{what: what, paths: paths, build: build, log: log}
	contents, err := w.read()
	if err != nil {
		return nil, err
	}
	if w.mu.value, err = build(contents); err != nil {
		return nil, err
	}
	w.mu.contents, w.mu.looked = contents, time.Now()
	return w, nil
}

// Get returns the value, after a look at the files if the last one was some
// time ago.
func (w *Watched[T]) Get() T {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.mu.looked) >= lookAgain {
		w.lookLocked()
	}
	return w.mu.value
}

// Look looks at the files now. Its error is what is wrong with them, for which the earlier ones hold.
func (w *Watched[T]) Look() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lookLocked()
	return w.mu.fault
}

func (w *Watched[T]) lookLocked() {
	w.mu.looked = time.Now()
	contents, err := w.read()
	if err == nil {
		if !sameContents(contents, w.mu.contents) {
			var value T
			if value, w.mu.refused = w.build(contents); w.mu.refused == nil {
				w.mu.value = value
				w.log.Info(w.what+" read again", zap.Strings("files", w.used()))
			}
			w.mu.contents = contents
		}
		err = w.mu.refused
	}
	if err != nil && (w.mu.fault == nil || err.Error() != w.mu.fault.Error()) {
		w.log.Error(w.what+" not usable, the earlier ones hold", zap.Error(err))
	}
	w.mu.fault = err
}

func (w *Watched[T]) read() ([][]byte, error) {
	contents := make([][]byte, len(w.paths))
	for i, path := range w.paths {
		if path == "" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", w.what, err)
		}
		contents[i] = text
	}
	return contents, nil
}

func (w *Watched[T]) used() (paths []string) {
	for _, path := range w.paths {
		if path != "" {
			paths = append(paths, path)
		}
	}
	return paths
}

func sameContents(a, b [][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// KeyPair reads a certificate, with its chain, and its key.
func KeyPair(certFile, keyFile string, cert, key []byte) (tls.Certificate, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return pair, fmt.Errorf("use certificate %s with key %s: %w", certFile, keyFile, err)
	}
	return pair, nil
}

// Authorities reads the certificates of certificate authorities.
func Authorities(file string, text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("use %s: %w", file, errEmptyFile)
	}
	return pool, nil
}

var errEmptyFile = errors.New("it holds no certificate")
