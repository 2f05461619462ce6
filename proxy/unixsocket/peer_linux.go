package unixsocket

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerOf asks the system for the process that opened the connection. A connection whose peer
// it cannot name is served all the same.
func peerOf(conn *net.UnixConn) Peer {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Peer{}
	}
	var cred *unix.Ucred
	if ctlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); ctlErr != nil || err != nil {
		return Peer{}
	}
	return Peer{known: true, pid: cred.Pid, uid: cred.Uid}
}
