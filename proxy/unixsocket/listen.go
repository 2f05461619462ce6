//go:build unix

package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// backlog is how many connections may wait to be accepted. The system lowers it to its own
// limit.
const backlog = 4096

// Listen makes a socket file with these permissions and listens there. A file that was left
// by a process that has ended is replaced. The error says if a living process listens there,
// and what else is in the way.
func Listen(path string, mode fs.FileMode) (*Listener, error) {
	unlock, err := lock(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := clearStale(path); err != nil {
		return nil, err
	}
	below, err := listenAt(path, mode)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	made, err := os.Lstat(path)
	if err != nil {
		_ = below.Close()
		return nil, fmt.Errorf("examine the new socket: %w", err)
	}
	return &Listener{UnixListener: below, path: path, made: made}, nil
}

// Inherit listens on a socket that another process has made at path with Listen, and that f is. Close leaves the socket's file to
// that process, unless Own was called before.
func Inherit(path string, f *os.File) (*Listener, error) {
	made, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("examine the inherited socket: %w", err)
	}
	below, err := net.FileListener(f) // which has a descriptor of its own
	if err != nil {
		return nil, fmt.Errorf("listen on the inherited socket of %s: %w", path, err)
	}
	l := &Listener{UnixListener: below.(*net.UnixListener), path: path, made: made}
	l.Disown()
	return l, nil
}

// lock keeps other listeners of this package out of a directory until unlock is called:
// between the look at a file and its removal, it must not become another's.
func lock(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory of the socket (create it, writable for Fencepost's user): %w", err)
	}
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(d.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		_ = d.Close()
		return nil, fmt.Errorf("lock the directory %s: %w", dir, err)
	}
	return func() { _ = d.Close() }, nil // which unlocks it
}

// clearStale removes a socket that no one listens on. Everything else that has this name is
// an error.
func clearStale(path string) error {
	there, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("examine the socket: %w", err)
	case there.IsDir():
		return fmt.Errorf("%s is a directory: name the socket in it, e.g. %s", path, filepath.Join(path, ".s.PGSQL.6432"))
	case there.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is no socket: remove it, or choose another path", path)
	}
	conn, err := net.Dial(Network, path)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("another process listens at %s: end it, or choose another path", path)
	case !errors.Is(err, syscall.ECONNREFUSED): // it has no room now, or lets only others connect
		return fmt.Errorf("another process may listen at %s: end it, remove the file, or choose another path: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the socket of a process that has ended: %w", err)
	}
	return nil
}

// listenAt makes the socket. As in Postgres, no one can connect before it has its
// permissions: it does not listen until then.
func listenAt(path string, mode fs.FileMode) (*net.UnixListener, error) {
	syscall.ForkLock.RLock()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() // FileListener has a descriptor of its own
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	var ln net.Listener
	if err = os.Chmod(path, mode); err == nil {
		if err = os.NewSyscallError("listen", unix.Listen(fd, backlog)); err == nil {
			ln, err = net.FileListener(f)
		}
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return ln.(*net.UnixListener), nil
}

// Listener accepts local clients.
type Listener struct {
	*net.UnixListener
	path string
	made fs.FileInfo // the file that Listen made

	disowned atomic.Bool // the file belongs to another process
	once     sync.Once
	closed   error
}

// Own makes Close remove the file, and gives it these permissions.
func (l *Listener) Own(mode fs.FileMode) error {
	l.disowned.Store(false)
	if err := os.Chmod(l.path, mode); err != nil {
		return fmt.Errorf("set the permissions of the socket: %w", err)
	}
	return nil
}

// Disown makes Close leave the file to another process that listens on the same socket.
func (l *Listener) Disown() { l.disowned.Store(true) }

// Reachable reports whether clients that connect to the path get here: the file is still there.
func (l *Listener) Reachable() bool {
	there, err := os.Lstat(l.path)
	return err == nil && os.SameFile(there, l.made)
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return WithPeer(conn), nil
}

// WithPeer returns conn with a RemoteAddr that names the process which has opened it.
func WithPeer(conn *net.UnixConn) net.Conn { return &peerConn{UnixConn: conn, peer: peerOf(conn)} }

// Close ends the listener and removes its file, unless that belongs to another process. The file goes first: a process
// that starts meanwhile finds either a living listener or no file.
func (l *Listener) Close() error {
	l.once.Do(func() { l.closed = errors.Join(l.remove(), l.UnixListener.Close()) })
	return l.closed
}

// remove removes the file, unless it is disowned or gone, or another one has its name.
func (l *Listener) remove() error {
	if l.disowned.Load() {
		return nil
	}
	there, err := os.Lstat(l.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(there, l.made) {
		return nil
	}
	if err == nil {
		err = os.Remove(l.path)
	}
	if err != nil {
		return fmt.Errorf("remove the socket: %w", err)
	}
	return nil
}

// peerConn is a connection that knows its peer.
type peerConn struct {
	*net.UnixConn
	peer Peer
}

// RemoteAddr implements net.Conn.
func (c *peerConn) RemoteAddr() net.Addr { return c.peer }
