package sqltext

import (
	"bytes"
	"strings"
)

// Settings are the session's settings that determine how a text is read.
type Settings struct {
	// StandardConformingStrings is the reported parameter of that name. If it is off, a
	// backslash in '...' is an escape.
	StandardConformingStrings bool
	// SafeEncoding is the result of the function SafeEncoding.
	SafeEncoding bool
}

// DefaultSettings are the settings of a session that has changed none.
var DefaultSettings = Settings{StandardConformingStrings: true, SafeEncoding: true}

// DependsOnSettings reports whether the meaning of sql depends on the session's settings: whether it contains a
// backslash, which standard_conforming_strings and settings that the server does not report interpret, or a byte
// outside ASCII, which client_encoding interprets.
func DependsOnSettings(sql []byte) bool { return bytes.IndexByte(sql, '\\') >= 0 || !isASCII(sql) }

// SafeEncoding reports whether no byte of a multi-byte character can be an ASCII byte
// in the given client_encoding, so that quotes, backslashes and semicolons are what
// they appear to be. Unknown names are not safe.
func SafeEncoding(clientEncoding string) bool {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		default:
			return -1 // Postgres ignores the rest: UTF-8 is UTF8
		}
	}, clientEncoding)
	return safeEncodings[name]
}

// safeEncodings are all encodings that Postgres allows in a database, by their names in
// normalised form, including aliases. Those that only a client may use (SJIS,
// SHIFT_JIS_2004, BIG5, GBK, UHC, GB18030, JOHAB) are the ones whose trail bytes can be
// ASCII.
var safeEncodings = map[string]bool{
	"sqlascii": true, "utf8": true, "unicode": true, "muleinternal": true,
	"eucjp": true, "euccn": true, "euckr": true, "euctw": true, "eucjis2004": true,
	"latin1": true, "latin2": true, "latin3": true, "latin4": true, "latin5": true,
	"latin6": true, "latin7": true, "latin8": true, "latin9": true, "latin10": true,
	"iso88591": true, "iso88592": true, "iso88593": true, "iso88594": true, "iso88595": true,
	"iso88596": true, "iso88597": true, "iso88598": true, "iso88599": true, "iso885910": true,
	"iso885913": true, "iso885914": true, "iso885915": true, "iso885916": true,
	"win1250": true, "win1251": true, "win1252": true, "win1253": true, "win1254": true,
	"win1255": true, "win1256": true, "win1257": true, "win1258": true, "win866": true, "win874": true,
	"windows1250": true, "windows1251": true, "windows1252": true, "windows1253": true,
	"windows1254": true, "windows1255": true, "windows1256": true, "windows1257": true,
	"windows1258": true, "windows866": true, "windows874": true,
	"abc": true, "alt": true, "tcvn": true, "tcvn5712": true, "vscii": true, "win": true,
	"koi8": true, "koi8r": true, "koi8u": true,
}
