package sqltext

// MaxShape is the length, in bytes, of the longest text that has a shape.
const MaxShape = 512

// Shape appends sql to dst with each whole number of at most nine digits, which is an int4 in every
// version of Postgres, replaced by 1, and returns that. Texts of one shape name the same relations,
// functions, operators and types, and are reads or not, so what Proven says of one of them holds for all.
// What is quoted stays as it is. A text has no shape, and is returned as it is, if it does not begin with
// SELECT, VALUES, TABLE or WITH (a SET says different things with 0 and 1), if a comment, a dollar sign, a
// backslash or a byte that is not ASCII makes it uncertain where quotes end, or if a number may choose a
// type: float(24) and float(25) are two of them.
func Shape(dst, sql []byte) []byte {
	if len(sql) > MaxShape || !Streams(sql) {
		return sql
	}
	copied := 0
	for i := 0; i < len(sql); {
		start := i
		switch shapeBytes[sql[i]] {
		case inNoShape:
			return sql
		case inWord:
			if foldPrefix(sql[i:], "float") {
				return sql
			}
			for i++; i < len(sql) && shapeBytes[sql[i]] <= inNumber; i++ {
			}
		case inNumber:
			whole := true
			for i++; i < len(sql) && shapeBytes[sql[i]] <= inNumber; i++ {
				whole = whole && shapeBytes[sql[i]] == inNumber
			}
			if whole && i-start <= 9 {
				dst = append(append(dst, sql[copied:start]...), '1')
				copied = i
			}
		case inQuotes:
			for i++; i < len(sql) && sql[i] != sql[start]; i++ {
				if sql[i] >= 0x80 || sql[i] == '\\' {
					return sql
				}
			}
			if i++; i > len(sql) {
				return sql
			}
		case inComment:
			if i++; i < len(sql) && (sql[start] == '-' && sql[i] == '-' || sql[start] == '/' && sql[i] == '*') {
				return sql
			}
		default:
			i++
		}
	}
	return append(dst, sql[copied:]...)
}

// What a byte can be in, for Shape.
const (
	inWord = iota // or in a number that is not an int4
	inNumber
	inQuotes  // which it begins
	inComment // which it may begin
	inNoShape
	inOther
)

var shapeBytes = func() (classes [256]uint8) {
	for i := range classes {
		switch c := byte(i); {
		case c >= 0x80, c == '$', c == '\\':
			classes[i] = inNoShape
		case c == '\'', c == '"':
			classes[i] = inQuotes
		case isDigit(c):
			classes[i] = inNumber
		case isIdentifier(c), c == '.':
			classes[i] = inWord
		case c == '-', c == '/':
			classes[i] = inComment
		default:
			classes[i] = inOther
		}
	}
	return classes
}()
