package differential

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/internal/wiretest"
)

// names are the names of the server's messages in transcripts.
var names = map[byte]string{
	'1': "ParseComplete", '2': "BindComplete", '3': "CloseComplete", 'A': "NotificationResponse", 'C': "CommandComplete",
	'D': "DataRow", 'E': "ErrorResponse", 'G': "CopyInResponse", 'H': "CopyOutResponse", 'I': "EmptyQueryResponse",
	'K': "BackendKeyData", 'N': "NoticeResponse", 'R': "Authentication", 'S': "ParameterStatus", 'T': "RowDescription",
	'V': "FunctionCallResponse", 'Z': "ReadyForQuery", 'c': "CopyDone", 'd': "CopyData", 'n': "NoData",
	's': "PortalSuspended", 't': "ParameterDescription",
}

// varying matches numbers in the text of errors and rows that differ between server
// processes or databases, the last of them the names of snapshots.
var varying = regexp.MustCompile(`pg_(toast_)?temp_\d+|\bOID \d{5,}|(type|relation|function|oid|OID) \d{5,}|process \d+|db_[a-z0-9]{16}|\b[0-9A-F]{8}-[0-9A-F]{8}-\d+\b`)

// lines returns the messages as a transcript shows them, without what differs between
// server processes.
func lines(all []wiretest.Message) []string {
	out := make([]string, 0, len(all))
	for _, m := range all {
		if tells(m) || skips(m) || explainsGuard(m) {
			continue
		}
		out = append(out, varying.ReplaceAllString(line(m), "…"))
	}
	return out
}

// tells reports whether m is a message in which Fencepost announces something about
// itself.
func tells(m wiretest.Message) bool {
	return m.Type == 'S' && bytes.HasPrefix(m.Body, []byte("fencepost."))
}

// skips reports whether m names a table that VACUUM or ANALYZE of the whole database
// skips. They are named in the order of the catalog, and the fence's tables are among
// them.
func skips(m wiretest.Message) bool {
	return m.Type == 'N' && bytes.Contains(m.Body, []byte("skipping "))
}

// explainsGuard reports whether m is the line of EXPLAIN ANALYZE about the trigger of a guard.
func explainsGuard(m wiretest.Message) bool {
	return m.Type == 'D' && bytes.Contains(m.Body, []byte("Trigger ~fencepost: "))
}

func line(m wiretest.Message) string {
	name, body := names[m.Type], m.Body
	switch m.Type {
	case 'E', 'N':
		f := m.Fields()
		s := fmt.Sprintf("%s %s %s %q", name, f['V'], f['C'], f['M'])
		for _, k := range "SDHPpqWstcdnFLR" {
			if v, ok := f[byte(k)]; ok && !(k == 'S' && v == f['V']) {
				s += fmt.Sprintf(" %c=%q", k, v)
			}
		}
		return s
	case 'T':
		return name + columns(body)
	case 't':
		for i := 2; i+4 <= len(body); i += 4 {
			name += " " + oid(body[i:])
		}
		return name
	case 'A':
		return name + " " + quote(bytes.SplitN(body[4:], []byte{0}, 3)[:2])
	case 'S':
		return name + " " + quote(bytes.SplitN(body, []byte{0}, 3)[:2])
	case 'D':
		return name + row(body)
	case 'Z', 'C':
		return name + " " + string(bytes.TrimRight(body, "\x00"))
	}
	if len(body) == 0 {
		return name
	}
	return fmt.Sprintf("%s %q", name, body)
}

func quote(parts [][]byte) string {
	out := make([]string, len(parts))
	for i, p := range parts {
		out[i] = strconv.Quote(string(p))
	}
	return strings.Join(out, " ")
}

// firstUser is the first object id of users' objects.
const firstUser = 16384

// oid masks an object id, because those of users' objects vary.
func oid(b []byte) string {
	if n := binary.BigEndian.Uint32(b); n < firstUser {
		return strconv.Itoa(int(n))
	}
	return "user"
}

func columns(body []byte) (s string) {
	for rest := body[min(2, len(body)):]; len(rest) > 0; {
		end := bytes.IndexByte(rest, 0)
		if end < 0 || len(rest) < end+19 {
			return s + fmt.Sprintf(" and %q", rest)
		}
		f := rest[end+1:]
		s += fmt.Sprintf(" %q table=%s.%d type=%s len=%d mod=%d format=%d", rest[:end], oid(f),
			binary.BigEndian.Uint16(f[4:]), oid(f[6:]), int16(binary.BigEndian.Uint16(f[10:])),
			int32(binary.BigEndian.Uint32(f[12:])), binary.BigEndian.Uint16(f[16:]))
		rest = rest[end+19:]
	}
	return s
}

func row(body []byte) (s string) {
	for rest := body[min(2, len(body)):]; len(rest) >= 4; {
		n := int(int32(binary.BigEndian.Uint32(rest)))
		rest = rest[4:]
		if n < 0 {
			s += " null"
			continue
		}
		n = min(n, len(rest))
		s += " " + strconv.Quote(string(rest[:n]))
		rest = rest[n:]
	}
	return s
}
