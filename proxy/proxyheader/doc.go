// Package proxyheader reads the header of the PROXY protocol, version 1 (a line of text) or 2
// (binary), with which a load balancer says from which address a client connected to it.
//
// The header precedes everything else on the connection, TLS included. Because the event loop
// of package netloop reads the descriptor itself, a header is read without a byte past its
// end. What a header means is decided by github.com/pires/go-proxyproto; this package only
// finds out where it ends.
//
// Only a load balancer that is trusted may say who its clients are. Everyone else's
// connection is left as it is: nothing is read from it here, so a header that an untrusted
// peer sends is taken for a startup packet, and refused as such.
package proxyheader
