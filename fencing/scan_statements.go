package fencing

// leadingWords is how many words at its start tell the kind of a statement.
const leadingWords = 6

// unparsed tells of a text that the grammar could not be given, or does not
// know, what its words tell: how many statements there are, and what kind each
// is by its first words, which no later word can change. All of it is a write.
func unparsed(sql string, s Settings, why string) *Text {
	t := &Text{why: why, Single: singleByBytes(sql)}
	if s.SafeEncoding || isASCII(sql) {
		if st, ok := splitByWords(sql, !s.StandardConformingStrings); ok {
			t.Statements, t.Single = st, len(st) <= 1
			return t
		}
	}
	if t.Single {
		sc := scanner{sql: sql}
		words, first := sc.leading()
		for len(words) == 0 && first.kind == tokenSemicolon {
			words, first = sc.leading()
		}
		switch {
		case len(words) > 0:
		case first.kind == tokenEnd:
			t.Known = true // comments only: their ends are ASCII in every encoding
			return t
		case sql[first.start:first.end] == "\v":
			return t // it is space to newer servers, so that this may be empty
		}
		t.Statements = []Statement{guess(words)}
		t.Statements[0].End = len(sql)
		t.Statements[0].MentionsQueryText = mentionsQueryText([]byte(sql))
	}
	return t
}

// splitByWords finds the statements of sql. It reports false if it cannot be
// sure, and if there is none.
func splitByWords(sql string, escapes bool) ([]Statement, bool) {
	var found []Statement
	s := scanner{sql: sql, escapes: escapes}
	for start := 0; ; {
		words, first := s.leading()
		last, ok := s.finish(first)
		if !ok {
			return nil, false
		}
		if len(words) > 0 || first != last {
			st := guess(words)
			st.Start, st.End = start, last.start
			st.MentionsQueryText = mentionsQueryText([]byte(sql[start:last.start]))
			found = append(found, st)
		}
		if last.kind == tokenEnd {
			return found, len(found) > 0
		}
		start = last.end
	}
}

// finish reads from t on to the semicolon or end that ends the statement. It
// reports false for text without an end, for brackets that do not match, and
// for a word ATOMIC, which may begin a body with semicolons of its own.
func (s *scanner) finish(t token) (token, bool) {
	for depth := 0; ; t = s.next() {
		switch t.kind {
		case tokenBad, tokenJunk:
			return t, false
		case tokenOpen:
			depth++
		case tokenClose:
			if depth--; depth < 0 {
				return t, false
			}
		case tokenWord:
			if foldEqual([]byte(s.sql[t.start:t.end]), "atomic") {
				return t, false
			}
		case tokenEnd:
			return t, depth == 0
		case tokenSemicolon:
			if depth == 0 {
				return t, true
			}
		}
	}
}

// leading reads the words a statement begins with, and the token behind them.
func (s *scanner) leading() ([]string, token) {
	var words []string
	for {
		t := s.next()
		if t.kind != tokenWord || len(words) == leadingWords {
			return words, t
		}
		words = append(words, lower(s.sql[t.start:t.end]))
	}
}
