package fencing

import (
	"fmt"
	"strconv"
	"strings"
)

// oldestServer is the oldest major version of PostgreSQL that is supported.
const oldestServer = 15

// ServerMajor returns the major version in a server's parameter server_version, 0 if it has none.
func ServerMajor(version string) int {
	end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		version = version[:end]
	}
	major, _ := strconv.Atoi(version) // 0 if there are no digits
	return major
}

// OldServer refuses a server whose major version is too old. It returns nil if it is not, or if it is not known.
func OldServer(major int) *Refusal {
	if major == 0 || major >= oldestServer {
		return nil
	}
	return oldServer(fmt.Sprintf("the server has PostgreSQL %d, but Fencepost needs PostgreSQL %d or newer", major, oldestServer))
}

// SettingRefusal refuses a server that does not know a setting which each supported version has. why is its error.
func SettingRefusal(why string) *Refusal {
	return oldServer(fmt.Sprintf("the server is older than PostgreSQL %d, which Fencepost needs: %s", oldestServer, ASCII(why)))
}

func oldServer(message string) *Refusal {
	return &Refusal{
		SQLState: StateNoFence,
		Message:  message,
		Hint:     fmt.Sprintf("Upgrade the server to PostgreSQL %d or newer, or connect to another one (Fencepost's setting upstream.address, or --dsn of a command).", oldestServer),
	}
}
