// Package guards tests guarded and stamped tables on real servers: every way to write a row,
// as the leader behind a proxy and past it; sessions that claim their epoch themselves and race
// with grants; what a leader's session may do to its settings; and resources that leave their
// followers to guards.
package guards
