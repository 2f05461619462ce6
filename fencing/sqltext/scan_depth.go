package sqltext

// nestingLevel is what was found since a bracket was opened.
type nestingLevel struct {
	tokens int // in the current item: since the last comma or semicolon
	inner  int // the deepest bracket within the current item
	items  int // the deepest of the preceding items
	setOps int // UNION, INTERSECT, EXCEPT: these join items across commas
}

func (l *nestingLevel) endItem() {
	l.items = max(l.items, l.tokens+l.inner)
	l.tokens, l.inner = 0, 0
}

const (
	// commentDepthMax and operatorMax limit constructs for which the grammar's lexer
	// takes quadratic time: nested comments, and long runs of operator characters (an
	// operator has at most 63).
	commentDepthMax = 64
	operatorMax     = 256
)

// tooDeep reports whether the tree of sql could be deeper than limit, using an upper
// bound: brackets nest, and within a bracket the tree is at most as deep as the number
// of tokens of its longest item (1+1+1+... is as deep as it is long), except for set
// operations, whose tree also grows across commas. The grammar itself needs no stack,
// but the code that walks its tree does, and in C a stack overflow kills the process.
// It also returns true if comments are nested too deeply or an operator is too long.
func tooDeep(sql string, limit int) bool {
	s := scanner{sql: sql}
	levels := make([]nestingLevel, 1, 16)
	for operator, last := 0, 0; ; {
		l := &levels[len(levels)-1]
		t := s.next()
		if operator++; t.kind != tokenOther || t.start > last || isDigit(sql[t.start]) {
			operator = 0
		}
		last = t.end
		if s.comments > commentDepthMax || operator > operatorMax {
			return true
		}
		switch t.kind {
		case tokenEnd, tokenBad:
			if s.pos >= len(sql) {
				return depthOf(levels) > limit
			}
			l.tokens++
		case tokenComma:
			l.endItem()
		case tokenSemicolon:
			if l.endItem(); l.items+l.setOps > limit {
				return true
			}
			l.setOps, l.items = 0, 0
		case tokenOpen:
			l.tokens++
			if len(levels) > limit {
				return true
			}
			levels = append(levels, nestingLevel{})
		case tokenClose:
			if len(levels) > 1 { // otherwise the grammar stops here
				levels = closeBracket(levels)
			}
		default:
			l.tokens++
			if t.kind == tokenWord && isSetOperation(sql[t.start:t.end]) {
				l.setOps++
			}
		}
	}
}

// closeBracket adds the innermost level to the current item of the enclosing one.
func closeBracket(levels []nestingLevel) []nestingLevel {
	l := &levels[len(levels)-1]
	l.endItem()
	outer := &levels[len(levels)-2]
	outer.inner = max(outer.inner, l.items+l.setOps)
	return levels[:len(levels)-1]
}

// depthOf returns the bound for brackets that were never closed: the text has an error,
// but the grammar processes what precedes it.
func depthOf(levels []nestingLevel) int {
	depth := 0
	for i := len(levels) - 1; i >= 0; i-- {
		l := levels[i]
		l.inner = max(l.inner, depth)
		l.endItem()
		depth = l.items + l.setOps
	}
	return depth
}

func isSetOperation(word string) bool {
	b := []byte(word)
	return equalFold(b, "union") || equalFold(b, "except") || equalFold(b, "intersect")
}
