package protocol

// statements are a session's prepared statements by the names that the server keeps,
// without those whose names it may read otherwise (see opaque).
type statements struct {
	byName map[string]*statement
	bytes  int // of their texts
	// freeing counts those that free names of others when SQL EXECUTE runs them;
	// hidden is set once such a one may exist that is not listed here.
	freeing int
	hidden  bool
}

// get returns nil for a name that is not known.
func (t *statements) get(name []byte) *statement { return t.byName[string(name)] }

func (t *statements) set(name string, s *statement) {
	t.remove(name)
	if t.byName == nil {
		t.byName = map[string]*statement{}
	}
	t.byName[name] = s
	t.bytes += len(s.text)
	if s.freesNames() {
		t.freeing++
	}
}

func (t *statements) remove(name string) {
	s := t.byName[name]
	if s == nil {
		return
	}
	delete(t.byName, name)
	t.bytes -= len(s.text)
	if s.freesNames() {
		t.freeing--
	}
}

// free follows what frees a name, if the server runs it.
func (t *statements) free(name string) {
	if s := t.byName[name]; s != nil {
		t.hide(s) // it is still there if the server skips that
	}
	t.remove(name)
}

// doubt follows a PREPARE of that name. It fails where the name is taken, as far
// as is known, unless it was freed in a way the proxy did not see.
func (t *statements) doubt(name string) {
	if s := t.byName[name]; s != nil {
		t.hide(s)
		t.set(name, unknownStatement)
	}
}

// hide follows a statement that may be on the server without being listed here.
func (t *statements) hide(s *statement) { t.hidden = t.hidden || s.freesNames() }

// forget drops all of them, though some may still be on the server.
func (t *statements) forget() {
	t.hidden = t.mayFree()
	clear(t.byName)
	t.bytes, t.freeing = 0, 0
}

// mayFree reports whether SQL EXECUTE of some name may free others.
func (t *statements) mayFree() bool { return t.hidden || t.freeing > 0 }

// freesNames reports whether running s may free names of prepared statements.
func (s *statement) freesNames() bool {
	return s.hides() || frees(&s.info)
}
