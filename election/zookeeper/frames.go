package zookeeper

import (
	"encoding/binary"
	"fmt"
)

// Lengths of messages, in bytes without the length itself.
const (
	// firstLeast and firstMost bound the server's first message, which has a password of 16 bytes.
	firstLeast, firstMost = 36, 256
	// replyLeast is the header that every other one begins with. The library takes it for granted.
	replyLeast = 16
	// replyMost is far more than a server sends to Fencepost. The library would allocate whatever a
	// length asks for.
	replyMost = 16 << 20
)

// frames follows the messages of a server by their lengths. What is not ZooKeeper's protocol is found
// out before the library reads it.
type frames struct {
	whole  int // how many messages have come whole
	length [4]byte
	have   int // how many bytes of length have come
	left   int // what is missing of the message
}

// follow takes what has come. Its error is that no message of ZooKeeper is so long.
func (f *frames) follow(p []byte) error {
	for len(p) > 0 {
		if f.left > 0 {
			n := min(f.left, len(p))
			f.left, p = f.left-n, p[n:]
			if f.left == 0 {
				f.whole++
			}
			continue
		}
		n := copy(f.length[f.have:], p)
		f.have, p = f.have+n, p[n:]
		if f.have < len(f.length) {
			return nil
		}
		least, most := uint32(replyLeast), uint32(replyMost)
		if f.whole == 0 {
			least, most = firstLeast, firstMost
		}
		size := binary.BigEndian.Uint32(f.length[:])
		if size < least || size > most {
			return fmt.Errorf("it has begun a message of %d bytes, which no message of ZooKeeper has here: is it a ZooKeeper server?", size)
		}
		f.have, f.left = 0, int(size)
	}
	return nil
}
