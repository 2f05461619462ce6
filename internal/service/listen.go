package service

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/service/upgrade"
	"github.com/fencepost/fencepost/proxy/unixsocket"
)

// keepalive detects a client whose host has died silently: its connection ends after 75
// s without a response, and releases what it holds.
var keepalive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 6}

// listen opens all listeners, or none. It takes those that the process has that this one replaces.
func (s *Server) listen() error {
	for _, address := range s.current().Listen {
		ln, err := s.listenAt(address)
		if err != nil {
			s.closeListeners()
			return fmt.Errorf("listen for workers (setting listen): %w", err)
		}
		s.listeners = append(s.listeners, ln)
	}
	if s.current().Admin.Address == "" {
		return nil
	}
	var err error
	if s.admin, err = s.listenForAdmin(s.current().Admin.Address); err != nil {
		s.closeListeners()
		return fmt.Errorf("listen on the admin address (set admin: \"\" to disable it): %w", err)
	}
	return nil
}

// listenAt opens one listener for workers.
func (s *Server) listenAt(address config.Address) (net.Listener, error) {
	inherited := s.options.Replaces.Take(workersAt(address))
	if inherited != nil {
		defer inherited.Close() // the listener has a descriptor of its own
	}
	switch {
	case address.Network() == unixsocket.Network && inherited != nil:
		return unixsocket.Inherit(string(address), inherited)
	case address.Network() == unixsocket.Network:
		return unixsocket.Listen(string(address), fs.FileMode(s.current().ListenMode))
	case inherited != nil:
		ln, err := net.FileListener(inherited)
		if err != nil {
			return nil, err
		}
		return probing{ln.(*net.TCPListener)}, nil
	}
	workers := net.ListenConfig{KeepAliveConfig: keepalive}
	return workers.Listen(context.Background(), "tcp", string(address))
}

// probing is an inherited listener, whose connections have the same keepalive as those of any other.
type probing struct{ *net.TCPListener }

// Accept implements net.Listener.
func (l probing) Accept() (net.Conn, error) {
	conn, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	_ = conn.SetKeepAliveConfig(keepalive) // a connection that has ended already has none
	return conn, nil
}

func (s *Server) listenForAdmin(address string) (net.Listener, error) {
	if inherited := s.options.Replaces.Take(adminAt(address)); inherited != nil {
		defer inherited.Close()
		return net.FileListener(inherited)
	}
	return net.Listen("tcp", address)
}

// closeListeners closes the listeners of a Server that never ran: nobody has
// connected.
func (s *Server) closeListeners() {
	for _, ln := range s.listeners {
		_ = ln.Close()
	}
	if s.admin != nil {
		_ = s.admin.Close()
	}
}

// The names of sockets that are passed on. They name what the configuration says, and not where a socket has come to
// listen.
func workersAt(address config.Address) string { return "workers at " + string(address) }
func adminAt(address string) string           { return "admin at " + address }

// sockets returns the sockets that a new process may take, those of the workers first.
func (s *Server) sockets() []upgrade.Socket {
	var all []upgrade.Socket
	for i, ln := range s.listeners {
		if local, ok := ln.(*unixsocket.Listener); ok && !local.Reachable() { // the new process makes its own
			continue
		}
		all = append(all, upgrade.Socket{Name: workersAt(s.current().Listen[i]), Listener: ln})
	}
	if s.admin != nil {
		all = append(all, upgrade.Socket{Name: adminAt(s.current().Admin.Address), Listener: s.admin})
	}
	return all
}

// ownSockets makes the files of inherited Unix sockets those of this process.
func (s *Server) ownSockets() error {
	for _, ln := range s.listeners {
		if local, ok := ln.(*unixsocket.Listener); ok {
			if err := local.Own(os.FileMode(s.current().ListenMode)); err != nil {
				return err
			}
		}
	}
	return nil
}
