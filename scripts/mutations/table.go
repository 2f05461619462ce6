package main

// mutation is one fault that is planted in the gate.
type mutation struct {
	name     string
	file     string   // of the tree
	old      string   // must be in it exactly once
	text     string   // what takes its place
	tests    string   // pattern of the tests that must notice it
	packages []string // ./proxy if there are none
}

// fast are the safety tests that take a few seconds.
const fast = "^TestSafety(FollowersWriteNothing|FollowersInABlock|FollowersFastPath|StaleWriteIsRefused)$"

// table are the faults. Add one as a row: choose old so that it is one place, and a
// text that compiles.
var table = []mutation{
	{
		name: "no check in front of messages", file: "proxy/machine_guard.go",
		old:  "	p.insert(m.checks.run(g, m.inFront()))\n	e := m.owed.push(run, true)",
		text: "	e := m.owed.push(run, true)", tests: fast,
	},
	{
		name: "a check of messages counts after its Sync", file: "proxy/machine.go",
		old:  "	m.cover, m.failed, m.inTx, m.carried, m.unsure = uncovered, false, false, false, false\n	m.loose",
		text: "	m.failed, m.inTx, m.carried, m.unsure = false, false, true, false\n	m.loose", tests: fast,
	},
	{
		name: "COMMIT does not end the cover inside a text", file: "proxy/machine_follow.go",
		old: "case !s.known, s.info.EndsTx, s.info.EndsSavepoint,", text: "case !s.known, s.info.EndsSavepoint,", tests: fast,
	},
	{
		name: "followers are taken for those who may write", file: "proxy/machine.go",
		old:  "	case m.cover >= readCovered:\n			return forward, needNothing, nil\n		default:\n			return readFirst, needNothing, nil",
		text: "	case m.cover >= readCovered:\n			return forward, needNothing, nil\n		default:\n			return forward, needNothing, nil", tests: fast,
	},
	{
		name: "Bind is not guarded", file: "proxy/machine_extended.go",
		old:  "	if need := m.guardExtended(s, p); need != needNothing {\n		return need\n	}\n	m.snapshots = m.snapshots || takesSnapshot(s)\n	m.portals",
		text: "	m.snapshots = m.snapshots || takesSnapshot(s)\n	m.portals", tests: fast,
	},
	{
		name: "Parse is not guarded", file: "proxy/machine_extended.go",
		old:  "	need := m.guardExtended(s, p)\n	m.reparses = false",
		text: "	need := needNothing\n	m.reparses = false", tests: fast,
	},
	{
		name: "CALL goes behind a check instead of a note", file: "proxy/machine.go",
		old:  "		case alone, m.failsOutside(s):\n			return m.judgeAlone(s)",
		text: "		case alone && false, m.failsOutside(s):\n			return m.judgeAlone(s)", tests: fast + "|^TestSafetyHiddenCommits$",
	},
	{
		name: "a function call outside a block goes bare", file: "proxy/machine_client.go",
		old:  "if m.mode != passing && !m.failed && m.cover != fullCovered {",
		text: "if m.mode != passing && m.failed && m.cover != fullCovered {", tests: fast,
	},
}
