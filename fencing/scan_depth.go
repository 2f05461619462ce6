package fencing

// nestingLevel is what was seen since a bracket opened.
type nestingLevel struct {
	tokens int // in the current item: since the last comma or semicolon
	inner  int // the deepest bracket within the current item
	items  int // the deepest of the items before
	setOps int // UNION, INTERSECT, EXCEPT: these join items across commas
}

func (l *nestingLevel) endItem() {
	l.items = max(l.items, l.tokens+l.inner)
	l.tokens, l.inner = 0, 0
}

// tooDeep reports whether the tree of sql could be deeper than limit, by an
// upper bound: brackets nest, and within a bracket the tree is no deeper than
// its longest item has tokens (1+1+1+... is as deep as it is long), but for set
// operations, whose tree also grows across commas. The grammar itself needs no
// stack, but what walks its tree does, and in C an overflow is the end of the
// process.
func tooDeep(sql string, limit int) bool {
	s := scanner{sql: sql}
	levels := make([]nestingLevel, 1, 16)
	for {
		l := &levels[len(levels)-1]
		t := s.next()
		switch t.kind {
		case tokenEnd:
			return depthOf(levels) > limit
		case tokenBad:
			if s.pos >= len(sql) {
				return depthOf(levels) > limit
			}
			l.tokens++
		case tokenJunk:
			l.tokens += 2
		case tokenComma, tokenSemicolon:
			l.endItem()
			if t.kind == tokenSemicolon {
				if l.items+l.setOps > limit {
					return true
				}
				l.setOps, l.items = 0, 0
			}
		case tokenOpen:
			l.tokens++
			if len(levels) > limit {
				return true
			}
			levels = append(levels, nestingLevel{})
		case tokenClose:
			if len(levels) == 1 {
				continue // the grammar stops here
			}
			l.endItem()
			depth := l.items + l.setOps
			levels = levels[:len(levels)-1]
			outer := &levels[len(levels)-1]
			outer.inner = max(outer.inner, depth)
		default:
			l.tokens++
			if t.kind == tokenWord && isSetOperation(sql[t.start:t.end]) {
				l.setOps++
			}
		}
	}
}

// depthOf is the bound for brackets that were never closed: the text has an
// error, but the grammar sees what is in front of it.
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
	switch len(word) {
	case 5:
		return foldEqual([]byte(word), "union")
	case 6:
		return foldEqual([]byte(word), "except")
	case 9:
		return foldEqual([]byte(word), "intersect")
	}
	return false
}
