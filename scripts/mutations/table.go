package main

// mutation is one fault that is planted in the gate.
type mutation struct {
	name  string
	file  string // path in the tree
	old   string // text that must occur in the file exactly once
	text  string // its replacement
	tests string // pattern of the tests that must notice the fault
	in    string // package of the tests; ./test/safety if empty
	says  string // text that the failed tests must print, if any failure is not enough
}

// What the oracle says of a mutant in which an attack succeeds. It reports that before the server
// has run anything, so the other assertions of the tests show nothing of the oracle.
const (
	uncovered = "oracle: Query: "
	notNoted  = "oracle: the backend is noted under epoch 2, which was granted to "
)

// Tests on real servers that take a few seconds.
const (
	fastPath      = "^TestSafetyFollowersFastPath$"
	inABlock      = "^TestSafetyFollowersInABlock$"
	nothing       = "^TestSafetyFollowersWriteNothing$/^(insert_into_t|vacuum_c|select_wr|notify_ch,|select_._into)"
	flushed       = "^TestSafety(BlockThatWasFlushed|LockInABlockThatWasFlushed)$/^default$"
	cursor        = "^TestSafetyCursorInATextTooLongToRead$/^default$"
	declare       = "^TestSafetyDeclareOutsideABlock$"
	note          = "^TestSafetyNoteUnderAnothersEpoch$"
	openedOld     = "^TestSafetyTransactionOpenedBeforeTheGrant$"
	staleAll      = "^TestSafetyStaleWriteIsRefused$/^default$/"
	lapses        = "^TestALapsedLeaseIsNamed$"
	toldAgain     = "^TestSafetyAWorkerIsToldOnce$"
	claims        = "^(TestSafetyAClaimedEpochOpensNoWay|TestCheckRegistryAndRefusalAgree)$"
	itsClaim      = "^TestWhatALeaderDoesToItsClaim$/^default$"
	undoneOn15    = "^TestSafetyWhatUndoesReadOnlyModeIsRolledBack$/^default$"
	discardedOn15 = "^TestSafetyStaleWritesAreDiscarded$/^default$/"
)

const (
	ofTheGate  = "./proxy/gate"
	ofTheFence = "./fencing/store"
	ofTheCore  = "./proxy/protocol"
	ofReplies  = "./test/protocol"
	ofGuards   = "./test/guards"
	ofTheGuard = "./cmd/fencepost/guard"
	ofDiscard  = "./test/discard"
	ofThePumps = "./proxy"
	ofSystem   = "./test/system"
	ofSeveral  = "./test/several"

	theTxn      = "proxy/gate/txn.go"
	theReasons  = "proxy/gate/reason.go"
	theJudge    = "proxy/protocol/decide.go"
	theQueries  = "proxy/protocol/inject_query.go"
	theMessages = "proxy/protocol/extended.go"
	theCopies   = "proxy/protocol/copy.go"
	theFollower = "proxy/protocol/follow.go"
	theVerdicts = "proxy/protocol/verdict.go"
	theChosen   = "proxy/protocol/chosen.go"
	theAim      = "proxy/protocol/aim.go"
	theSchema   = "migrations/003_one_predicate.sql"
	theGuards   = "migrations/018_guard_corrections.sql"
	theChecks   = "fencing/check.go"
	theUpPump   = "proxy/pump_up.go"
)

// table lists the faults. To add one, choose old so that it is unique, and a text that
// compiles. A comment marks those that were once real leaks.
var table = []mutation{
	// The reasons.
	{name: "an uncovered transaction is covered", file: theTxn, in: ofTheGate, tests: "^TestTxn$",
		old: "return Reason{checked}, t.coverage == Checked", text: "return Reason{checked}, true"},
	{name: "read-only mode is a check for a function call", file: theJudge, tests: fastPath,
		old: "q.carrier == call && q.txn.Coverage() == gate.Checked", text: "q.carrier == call && q.txn.Coverage() >= gate.ReadOnly"},
	{name: "every block has failed", file: theTxn, tests: inABlock,
		old: "t.State() == Failed }", text: "t.State() >= InBlock }"},
	{name: "a text that cannot be read ends in a failed block", file: theJudge, tests: staleAll + "rolled|" + "^TestSafetyGrantWhileAWriteIsUnderWay$/^default$/a_text_too_long_to_read_in_a_failed",
		old: "	if s.known || q.carrier == call || q.carrier == prepared {\n		if r, ok := q.txn.Dead()", text: "	{\n		if r, ok := q.txn.Dead()"},
	{name: "a server that may answer skips", file: theTxn, in: ofTheGate, tests: "^TestSkipping",
		old: "t.skipping == skips && !pending", text: "t.skipping == skips"},
	// A leak.
	{name: "what only seems to be skipped is sent", file: theTxn, tests: "^TestSafetyErrorThatSeems",
		old: "t.skipping == skips && !pending", text: "t.skipping != runs && !pending"},
	// A leak.
	{name: "a name says which text runs", file: "proxy/protocol/retry.go", tests: "^TestSafetyNameThatAFunctionGaveAway$",
		old: "	return harmless\n", text: "	return false && harmless\n"},
	// A leak.
	{name: "only what another batch holds can take a name away", file: "proxy/protocol/retry.go", tests: "^TestSafetyNameGivenAwayInABind$",
		old: "if s.pushed == m.pendingReplies.pushed {", text: "if s.batch == m.batch.id {"},
	{name: "the check after a refused note has the epoch of now", file: "proxy/protocol/inject.go", in: ofTheCore, tests: "^TestACheckAfterARefusedNoteCannotPass$",
		old: "if m.inHand.registry.refusal != nil {", text: "if m.inHand.registry.refusal != nil && m.inHand.registry.held > 1<<40 {"},
	{name: "PREPARE of a known name leaves it known", file: "proxy/protocol/follow.go", in: ofReplies, tests: "^TestProtocolNameThatSQLGaveAway$",
		old: "m.names.statements.doubt(s.info.Name)", text: "_ = s.info.Name"},
	// A leak.
	{name: "DEALLOCATE frees the name that it has on the wire", file: "proxy/protocol/follow.go", tests: "^TestSafetyOneNameInManySpellings$/^default$",
		old: "&& opaque(bytesOf(s.info.Name)):", text: "&& opaque(nil):"},
	{name: "what can be known is harmless", file: theTxn, tests: nothing,
		old: "return s.EndsSavepoint\n", text: "return s.EndsSavepoint || s.Kind == sqltext.Ordinary\n"},
	{name: "an error at a stray CopyDone answers what follows", file: "proxy/protocol/errors.go", in: ofTheCore, tests: "^TestAnErrorAtAStrayMessageOfCopy$",
		old: "e.unowed == strayUnowed && pe.Code == queryCanceled", text: "false"}, // was a leak
	{name: "the server skips after an error at a stray CopyDone", file: "proxy/protocol/batch.go", in: ofTheCore, tests: "^TestAnErrorAtAStrayMessageOfCopy$",
		old: "b.open() && (b.unowed == flushShown || b.unowed == flushPending)", text: "b.open() && b.unowed != nothingUnowed"},
	{name: "RESET is harmless before 16", file: theTxn, in: "./proxy/protocol", tests: "^TestDecide$",
		old: "(!s.UnsetsReadOnly || version.KeepsReadOnly())", text: "(!s.UnsetsReadOnly || version > 0)"},
	// A leak.
	{name: "LOCK and SAVEPOINT go bare after a ReadyForQuery that said idle", file: theTxn, tests: flushed, says: uncovered,
		old: "t.State() == AtRest && s.RequiresTransactionBlock", text: "t.ready == idle && s.RequiresTransactionBlock"},
	// A leak.
	{name: "what goes behind a check is no work", file: theQueries, tests: "^TestSafetyAChoiceBehindARead$/^default$", in: ofSeveral,
		old: "m.chain.followBehind(by.injected, s)", text: "_ = s"},
	{name: "DEALLOCATE and DISCARD take no snapshot", file: theFollower, tests: "^TestSafetyALockBehindASnapshot$", in: ofReplies,
		old: "case !s.empty && s.info.Kind != sqltext.Session", text: "case !s.empty && s.info.Kind != sqltext.Deallocate && s.info.Kind != sqltext.Discard && s.info.Kind != sqltext.Session"},
	{name: "the registry covers an imported snapshot behind LOCK", file: theJudge, tests: "^TestSafetyAnImportedSnapshotIsOld$",
		old: "q.aim != nil || q.chain.imported || q.status", text: "q.aim != nil || q.status"},
	{name: "DECLARE outside a block goes bare", file: theTxn, tests: declare,
		old: "s.RequiresTransactionBlock && s.Kind != sqltext.ByMessage", text: "s.RequiresTransactionBlock"},
	{name: "a read needs no proof", file: theReasons, in: ofTheGate, tests: "^TestProvenByTheCatalogAlone$",
		old: "return Reason{harmless}, proven\n", text: "return Reason{harmless}, proven || s.Read\n"},
	{name: "a Query is rejected whatever it holds", file: theReasons, tests: nothing,
		old: "inert = end != len(body)", text: "inert = end >= 0"},
	{name: "a Parse is rejected whatever it holds", file: theReasons, in: ofTheGate, tests: "^TestInert",
		old: "	case 'P':\n		inert = endOfString(body) < 0 ||", text: "	case 'P':\n		inert = true || endOfString(body) < 0 ||"},
	{name: "to describe a statement only looks", file: theReasons, tests: staleAll + "describe",
		old: "len(body) == 0 || body[0] != 'S'", text: "true"},
	{name: "a refused note is one", file: theReasons, tests: note,
		old: "Registration{held: err == nil}", text: "Registration{held: true}"},
	{name: "no note is one", file: theReasons, tests: note,
		old: "return Reason{registered}, n.held", text: "return Reason{registered}, true"},
	{name: "no reason is one", file: theReasons, in: ofTheGate, tests: "^TestNothingPasses",
		old: "	if r.why == none {\n		panic", text: "	if r.why > unfenced {\n		panic"},
	{name: "one statement with a reason is enough for a text", file: theReasons, in: ofTheGate, tests: "^TestReasonOfAText$",
		old: "	if r.why == none {\n		return r\n	}\n	return next", text: "	return next"},

	// What is known about the transaction.
	{name: "at rest while replies are pending", file: theTxn, in: ofTheGate, tests: "^TestTxn$",
		old: "return t.ready == idle && !t.pending }", text: "return t.ready == idle }"},
	{name: "a batch that begins while replies are pending is outside", file: theTxn, in: ofTheGate, tests: "^TestTxn$",
		old: "t.begun = true; pending || t.pending {", text: "t.begun = true; (pending || t.pending) && t.ready != idle {"},
	// A leak.
	{name: "outside a block is what the last ReadyForQuery said", file: theTxn, tests: flushed, says: uncovered,
		old: "	case t.AtRest() && (!t.begun || t.state == Outside):", text: "	case t.ready == idle:"},
	{name: "COMMIT leaves the check in force", file: theTxn, tests: staleAll + "with_a_commit|^TestSafetyGrantWhileAWriteIsUnderWay$/^default$/(behind_a_commit|behind_a_rollback)",
		old: "	case MayEnd:\n		t.coverage = Uncovered\n", text: "	case MayEnd:\n"},
	{name: "Sync leaves the check in force", file: theTxn, tests: staleAll + "(extended|pipeline)",
		old: "		}\n		t.sent = sent{}", text: "		}\n		t.uncertain, t.state = false, Outside"},
	{name: "a Query leaves the check in force", file: theTxn, tests: staleAll + "(simple|pipeline)",
		old: "t.synced, t.sent = sent{}, sent{}", text: "t.synced, t.uncertain, t.state = sent{}, false, Outside"},
	{name: "a Sync behind COPY data leaves the check in force", file: theCopies, tests: staleAll + "(simple|extended),_behind_a_copy",
		old: "	if m.pendingReplies.len() == 1 {", text: "	if m.pendingReplies.len() > 0 {"},
	{name: "RESET leaves read-only mode in force", file: theTxn, in: ofTheGate, tests: "^TestTxn$",
		old: "		if t.coverage.IsReadOnly() {\n			t.coverage = Uncovered", text: "		if t.coverage == Checked {\n			t.coverage = Uncovered"},
	// A leak.
	{name: "RELEASE leaves read-only mode in force", file: theTxn, in: ofTheGate, tests: "^TestTxn$",
		old: "		if t.answered.IsReadOnly() {\n			t.answered = Uncovered", text: "		if t.answered == Uncovered {\n			t.answered = Uncovered"},
	{name: "a COMMIT that is answered leaves the check in force", file: theTxn, in: ofTheGate, tests: "^TestTxn$",
		old: "	case TransactionEnded:\n		t.answered = Uncovered", text: "	case TransactionEnded:"},
	{name: "a transaction leaves its check to the next", file: theTxn, tests: staleAll + "begun_after",
		old: "t.ready, t.answered = idle, Uncovered", text: "t.ready = idle"},

	// What is decided.
	{name: "a text that was not parsed is an ordinary statement", file: theJudge, tests: "^TestSafetyGrantWhileAWriteIsUnderWay$/^default$/a_text_too_long_to_read$",
		old: "	if !s.known {\n		return true\n	}\n	return s.info.Kind", text: "	return s.info.Kind"},
	// A leak.
	{name: "a text that was not parsed and begins with DECLARE goes bare", file: theJudge, tests: cursor, says: uncovered,
		old:  "	if q.carrier == lone && s.known {\n		if r, ok := q.txn.NothingOutside(&s.info); ok {",
		text: "	s.info.RequiresTransactionBlock = s.info.RequiresTransactionBlock || s.text != \"\" && s.text[0]|0x20 == 'd'\n	if q.carrier == lone {\n		if r, ok := q.txn.NothingOutside(&s.info); ok {"},
	{name: "CALL goes after a check instead of under a note", file: theJudge, tests: "^TestSafetyGrantWhileAWriteIsUnderWay$/^default$/(call_by_extended|prepared_call)",
		old: "	case q.alone(), q.noticesBlock() &&", text: "	case q.noticesBlock() &&"},
	{name: "without a resource all is let through", file: theJudge, tests: flushed,
		old:  "	case q.txn.Coverage() >= gate.ReadOnly:\n		return q.covered()\n	default:\n		return q.readFirst()\n	}\n}\n\n// unproven is",
		text: "	default:\n		return passes(func() gate.Reason { r, _ := gate.Unfenced(true); return r }())\n	}\n}\n\n// unproven is"},
	{name: "without a resource no read needs a proof", file: theJudge, tests: "^TestSafetyReadersCannotLeaveReadOnlyMode$/unfenced",
		old: "	case !q.config.Version.KeepsReadOnly() && !q.fenceless() && !q.proven():\n		if", text: "	case q.config.Version == 0:\n		if"},
	{name: "without a resource writes are reads", file: theJudge, tests: "^TestSafetyWritePathsOfThoseWhoDoNotLead$/18",
		old: "q.statement.info.Kind == sqltext.NonTransactional, !q.reads(q.statement):", text: "q.statement.info.Kind == sqltext.NonTransactional:"},
	{name: "a lease that is not confirmed is one", file: theJudge, tests: lapses,
		old: "	if leads(q.status, q.told()) {", text: "	if leads(q.status, q.told()) || q.status.Lapsed && q.told() != 0 {"},
	{name: "read-only mode is a check for a follower's writes", file: theJudge, tests: nothing,
		old: "		if q.txn.Coverage() == gate.Checked {\n			return q.covered() // checked while it led", text: "		if q.txn.Coverage() >= gate.ReadOnly {\n			return q.covered() // checked while it led"},
	{name: "no check in front of a Query", file: theQueries, tests: staleAll + "simple",
		old: "	by.prefix = m.checks.text(g, m.inFront())", text: "	by.prefix = []byte(\"select 1;\")"},
	{name: "no check in front of a later transaction of a text", file: "proxy/protocol/inject_text.go", tests: staleAll + "with_a_commit",
		old: "	by.put(by.m.injectText(g, by.index == 0), g)", text: "	if by.index == 0 {\n		by.put(by.m.injectText(g, true), g)\n	}"},
	{name: "no check in front of Parse", file: theMessages, tests: staleAll + "(extended|parse_alone)",
		old: "	r, need := m.injectMessage(s, reparses, p)\n", text: "	r, _ := gate.Unfenced(true)\n	need := NeedNothing\n	_ = reparses\n"},
	{name: "no check in front of Bind", file: theMessages, tests: staleAll + "(prepared_under|bind_alone)",
		old:  "	r, need := m.injectMessage(s, false, p)\n	if need != NeedNothing {\n		return need\n	}\n	if s.snapshot || s.unknown() {",
		text: "	r, _ := gate.Unfenced(true)\n	if s.snapshot || s.unknown() {"},
	{name: "what stands in front of a Parse is no work of its transaction", file: "proxy/protocol/inject_message.go", in: ofSeveral, tests: "^TestAChoiceBehindAParse$/^default$",
		old: "by.m.chain.has(hadWork) // it", text: "// it"},
	{name: "no check in front of Describe", file: theMessages, tests: staleAll + "describe",
		old: "		if r, need = m.injectMessage(s, false, p); need", text: "		if r, _ = gate.Unfenced(len(name) < 1000); need"},
	{name: "no check in front of a function call", file: "proxy/protocol/inject.go", tests: fastPath,
		old: "m.inject(m.decide(&q), unknownStatement, &by, p)", text: "m.inject(passes(func() gate.Reason { _ = q; r, _ := gate.Unfenced(true); return r }()), unknownStatement, &by, p)"},
	{name: "the check has the epoch that was told for the one that is held", file: "proxy/protocol/checks.go", tests: "^TestSafetyAClaimedEpochOpensNoWay$/^default$/insert",
		old: "	if !c.built.valid || c.built.announced", text: "	held = told\n	if !c.built.valid || c.built.announced"},
	{name: "what was told holds for the transaction in hand", file: "proxy/protocol/machine.go", tests: openedOld,
		old: "	if outside {\n		m.epochs.begins()\n", text: "	m.epochs.begins()\n	if outside {\n"},
	{name: "a COMMIT that did not run ends the transaction", file: "proxy/protocol/announced.go", tests: "^TestSafetyToldBetweenChainedTransactions$/^default$/a_COMMIT_that",
		old: "	if a.endedIn != batch+1 {", text: "	if a.endedIn == 0 {"},
	{name: "a worker that leads again is told at each startup", file: "proxy/join.go", tests: toldAgain,
		old: "	return !cand.SupersededBefore() || !tellEach && cand", text: "	return cand.SupersededBefore() || cand"},
	{name: "nobody notes who shares an epoch", file: "migrations/030_shared_tokens.sql", in: ofSystem, tests: "^TestSafetyAWorkerThatSharedAnEpochStartsOver$/^a_pause$",
		old: "        IF rec.worker IS DISTINCT FROM worker THEN", text: "        IF false THEN"},
	{name: "an epoch of the same token is left out", file: "election/grant.go", in: ofSystem, tests: "^TestSafetyATokenThatLedElsewhereStartsOver$",
		old: "	case c.token > 0:\n		except = \"\"\n", text: "	case c.token > 0:\n"},
	{name: "what was told of the epoch before counts for a token", file: "election/announce.go", in: ofSystem, tests: "^TestSafetyASharedTokenStartsOverWhereTheWorkerWasKnown$/^it_connects_again$",
		old: "c.token == 0 && k.epoch+1 == e", text: "k.epoch+1 == e"},
	{name: "a connection joins a shared token unexamined", file: "election/resource.go", in: ofSystem, tests: "^TestSafetyASharedTokenStartsOverOnEachConnection$",
		old: "	if err := c.examineShared(ctx); err != nil {", text: "	if err := error(nil); err != nil {"},
	{name: "a later discarded write of a transaction does not say so", file: "proxy/protocol/verdict.go", in: ofSystem, tests: "^TestSafetyEachDiscardedWriteStartsOver$",
		old: "	m.down.happens(Event{Kind: EventDiscarded}) // the verdict on its transaction", text: "	// the verdict on its transaction"},
	{name: "who leaves a superseded candidacy for another token does not say so", file: "proxy/member.go", in: ofSystem, tests: "^TestSafetyADiscardingConnectionStartsOver$",
		old: "		former.TellsSuperseded() // more than once if SET fails\n", text: ""},
	{name: "a connection that is cut says nothing of the resources that it chose", file: "proxy/seat.go", in: ofSystem, tests: "^TestSafetyAPoolIsToldAgainOfAResourceThatItChose$",
		old: "			s.joinedTo.Load().leavesSuperseded()\n", text: ""},
	{name: "a token is taken to be decided upon when it is set", file: theUpPump, in: ofSystem, tests: "^TestSafetyWhatWasSentBeforeATokenWasKnownStartsOver$",
		old: "x.rejoin(ctx, need.Join.Token, u.since())", text: "x.rejoin(ctx, need.Join.Token, time.Now())"},
	{name: "what has arrived in part is as old as the rest", file: theUpPump, in: ofSystem, tests: "^TestSafetyWhatHasArrivedInPartStartsOver$",
		old: "		u.since()\n	}\n	u.settle()", text: "	}\n	u.settle()"},
	{name: "what was read is as old as the wait that follows", file: theUpPump, in: ofThePumps, tests: "^TestWhatWasReadIsAsOldAsTheRead$",
		old: "		u.waiting = u.arrived\n", text: ""},
	{name: "a write that blocks is no wait", file: theUpPump, in: ofThePumps, tests: "^TestAWriteThatBlocksIsAWait$",
		old: "	ends, began := x.watchWrite(), time.Now()", text: "	ends, began := x.watchWrite(), time.Now().Add(time.Hour)"},
	{name: "a connection from before the worker was told counts as a later one", file: "proxy/startup.go", tests: toldAgain,
		old: "				s.began = r.began\n", text: "				s.began = time.Now()\n"},

	// What a verdict says.
	{name: "a stale transaction is covered", file: theVerdicts, in: ofDiscard, tests: discardedOn15,
		old: "m.txn.Answer(gate.VerdictStale, false)", text: "m.txn.Answer(gate.CheckPassed, false)"},
	{name: "a discarded write is executed", file: theJudge, in: ofDiscard, tests: discardedOn15,
		old: "	default:\n		return decision{action: discard}", text: "	default:\n		return q.covered()"},
	{name: "a message does not wait for the verdict", file: theVerdicts, in: ofDiscard, tests: discardedOn15,
		old: "	if !m.txn.Skips() {\n		m.txn.Send(gate.TakeVerdict, false)", text: "	if !m.txn.Skips() {\n		m.txn.Send(gate.RunCheck, false)"},
	{name: "RELEASE leaves a verdict in force", file: theTxn, in: ofTheGate, tests: "^TestTxn$",
		old: "{ return c == ReadOnly || c == Discarded }", text: "{ return c == ReadOnly }"},
	{name: "what a worker writes that never led is discarded", file: "migrations/015_discard.sql", in: ofTheFence, tests: "^TestOnlyWhoHasLedIsDiscarded$/^default$",
		old: "IF coalesce(held, 0) = 0 AND NOT EXISTS", text: "IF false AND NOT EXISTS"},
	{name: "a worker that never led is asked for a verdict", file: theJudge, in: ofTheCore, tests: "^TestDecide$",
		old: "q.config.Discards && fencing.Discardable(q.status) && q.canAsk()", text: "q.config.Discards && q.canAsk()"},
	{name: "what is executed in the place of a write does not notice that read-only mode was undone", file: theChecks, in: ofDiscard, tests: undoneOn15,
		old: "const DiscardedSQL = `SELECT fencepost.undone() WHERE", text: "const DiscardedSQL = `SELECT WHERE false AND"},
	{name: "a Sync commits what undid read-only mode", file: "proxy/protocol/client.go", in: ofDiscard, tests: undoneOn15,
		old: "	case 'S':\n		m.staysReadOnly(p)\n", text: "	case 'S':\n"},
	{name: "a Query that is skipped with its batch is answered", file: theVerdicts, in: ofDiscard, tests: "^TestAQueryBehindAFailedBatchIsSkipped$/^default$",
		old: "if typ != 'Q' || !failed {", text: "if typ != 'Q' || false && failed {"},
	{name: "a discarded Query does not wait for its batch", file: theJudge, in: ofDiscard, tests: discardedOn15,
		old: "	case q.carrier == lone && q.pending.certain():", text: "	case q.carrier == lone && q.pending == nil:"},
	{name: "a verdict sets no read-only mode", file: "migrations/015_discard.sql", in: ofDiscard, tests: discardedOn15,
		old: "    PERFORM set_config('transaction_read_only', 'on', true);\n", text: ""},

	// What the grammar says.
	{name: "NOTIFY is a read", file: "fencing/sqltext/tree.go", tests: nothing,
		old: "	case n.GetFetchStmt() != nil, n.GetClosePortalStmt()", text: "	case n.GetNotifyStmt() != nil, n.GetFetchStmt() != nil, n.GetClosePortalStmt()"},
	{name: "SELECT INTO is a read", file: "fencing/sqltext/look.go", in: "./fencing/sqltext", tests: "^TestClassify$",
		old: "	case *pgquery.IntoClause:", text: "	case *pgquery.IntoClause:\n		if true {\n			break\n		}"},
	{name: "DECLARE WITH HOLD needs a block", file: "fencing/sqltext/tree.go", in: "./fencing/sqltext", tests: "^TestOnlyInBlock$",
		old: "		c != nil && c.Options&withHold == 0", text: "		c != nil && c.Options&withHold >= 0"},
	{name: "a long text is analyzed while the session is locked", file: "proxy/protocol/analysis.go", in: "./proxy", tests: "^(TestAnalysisHoldsNobodyUp|TestAQuietLeaderIsNotHeldUp)$", says: "p99 of the leader's statements is ",
		old: "	inlineText = 2 << 10", text: "	inlineText = 1 << 20"},

	// What the database says.
	{name: "the predicate takes a client's word for what is held", file: theSchema, in: ofTheFence, tests: claims,
		old: "OPERATOR(pg_catalog.=) told AND told OPERATOR(pg_catalog.=) held;", text: "OPERATOR(pg_catalog.=) told;"},
	// A leak.
	{name: "enter compares what was told with the sequence alone", file: theSchema, tests: note, says: notNoted,
		old: "    IF NOT fencepost.holds(rec, last, told, held, incarnation) THEN", text: "    IF last IS DISTINCT FROM told THEN"},
	{name: "whose epoch it is does not matter", file: theSchema, in: ofTheFence, tests: claims,
		old: " AND (rec).incarnation OPERATOR(pg_catalog.=) incarnation, false)", text: ", false)"},

	// What a client has chosen.
	{name: "only the first of the chosen resources is checked", file: theAim, in: ofSeveral, tests: "^TestSafetyATransactionOfTwo$/^default$", says: uncovered,
		old: "		a.subjects = append(a.subjects, subject)\n", text: "		a.subjects = append(a.subjects[:0], subject)\n"},
	{name: "a choice outlasts its transaction", file: "proxy/protocol/announced.go", in: ofSeveral, tests: "^TestSafetyAnUndoneChoice$/^default$",
		old: "a.current, a.choices.base}", text: "a.current, a.inHand.choice}"},
	{name: "a COMMIT that was skipped has run", file: "proxy/protocol/ready.go", in: ofGuards, tests: "^TestSafetyACommitThatIsSkippedBeginsNothing$/^default$",
		old: "!m.down.failed && status != gate.FailedBlock", text: "!m.down.failed"},
	{name: "a LOCK TABLE that was skipped has begun its transaction", file: "proxy/protocol/reply_queue.go", in: ofSeveral, tests: "^TestSafetyALockThatIsSkippedLocksNothing$/^default$",
		old: "r.had |= e.adds & hadWork", text: "r.had |= e.adds &^ hadEnd"},
	{name: "a COMMIT that was skipped begins a transaction for what is told", file: "proxy/protocol/announced.go", in: ofSeveral, tests: "^TestSafetyWhatIsToldInATransaction$/^default$",
		old: "st.learn(st.pending, a.confirmed.number)", text: "st.learn(st.pending, a.number)"},
	{name: "a COMMIT that nobody has seen leaves the block", file: "proxy/protocol/reply_queue.go", in: ofSeveral, tests: "^TestSafetyACommitOfAnOlderPortal$/^default$",
		old: "r.had &^= hadBegin | hadLock", text: "r.had &^= hadLock"},
	{name: "a prepared COMMIT AND CHAIN ends nothing unseen", file: "proxy/protocol/ready.go", in: ofSeveral, tests: "^TestSafetyAChainByExecute$/^default$",
		old: "if m.names.statements.chains {", text: "if m.names.statements.chains && false {"}, // was a leak
	{name: "what has the name of a portal is what was bound", file: theMessages, in: ofSeveral, tests: "^TestSafetyA(Begin|Commit)ThatWasReplaced$/^default$",
		old: "(len(portal) == 0 || bound.number == m.batch.untouched)", text: "(len(portal) == 0 || bound.number > 0)"},
	{name: "an Execute of who knows what imports no snapshot", file: theMessages, in: ofSeveral, tests: "^TestSafetyASnapshotByAForgottenPortal$/^default$",
		old: "m.chain.imported = m.chain.imported || m.names.portals.importers", text: "_ = m.names.portals.importers"},
	{name: "what failed with its transaction is a part of the next", file: "proxy/protocol/ready.go", in: ofSeveral, tests: "^TestABeginThatFailsBeginsNothing$/^default$",
		old: "m.pendingReplies.rests(status != gate.Idle)", text: "m.pendingReplies.rests(status != gate.Idle || !m.pendingReplies.empty())"},
	{name: "a transaction of a text has not chosen", file: "proxy/protocol/inject_text.go", in: ofSeveral, tests: "^TestACommitThatHasRunEndsItsChoice$/^default$",
		old: "by.ends[n-1].after = t", text: "_ = by.ends[n-1].after"},
	{name: "a choice outlasts the failure of its batch", file: theChosen, in: ofSeveral, tests: "^TestSafetyAnUndoneChoice$/^default$",
		old: "	if failed {\n", text: "	if failed && false {\n"},
	{name: "what is announced in a transaction counts in it", file: theChosen, in: ofSeveral, tests: "^TestSafetyAResourceIsAnnounced$/^default$",
		old: "	case t.number > st.changed:", text: "	case t.number > 0:"},
	{name: "the server may have another value than was chosen", file: "fencing/chosen.go", in: ofSeveral, tests: "^TestSafetyTheServerDisagrees$/^default$",
		old: "%[2]s::pg_catalog.text%[3]s) IS NOT TRUE`", text: "%[2]s::pg_catalog.text%[3]s) IS NULL`"},

	// What a client's functions can bring about.
	{name: "a PREPARE TRANSACTION may be prepared in a failed block", file: theJudge, tests: "^TestNoTransactionIsPreparedLater$",
		old: `	if s.twoPhase() && s.name != "" {`, text: `	if s.twoPhase() && s.name == "x" {`},
	{name: "what seems to be skipped by the words of an error was skipped", file: "proxy/protocol/errors.go", in: ofReplies, tests: "^TestWordsOfACopyShiftNothing$",
		old: "	m.copy.unsure = m.copy.executed && ", text: "	m.copy.unsure = m == nil && "},
	{name: "nothing asks which Syncs a COPY that has failed leaves", file: "proxy/protocol/own_sync.go", in: ofTheCore, tests: "^TestAnAnswerBehindTheQuestionWhichSyncsAreAnswered$",
		old: "		m.down.doubt.due = true\n", text: "		m.down.doubt.due = false\n"},
	{name: "the last ReadyForQuery in front of the question is the client's", file: "proxy/protocol/own_sync.go", in: ofReplies, tests: "^TestProtocolCopyThatFailsInDoubt$/^(default|18)$/slow_rollback",
		old: "	m.down.doubt.asked = true\n", text: "	m.down.doubt.asked = false\n"},
	{name: "an error can skip a Sync behind the COPY", file: "proxy/protocol/ready.go", in: ofReplies, tests: "^TestProtocolCopyThatFailsInDoubt$/^(default|18)$/two_Syncs_among_bad_data",
		old: "			e.certainty = perhapsBefore\n", text: "			e.certainty = perhapsInBatch\n"},
	{name: "a Sync that a COPY ignores ends what was executed in front of it", file: "proxy/protocol/batch.go", in: ofReplies, tests: "^TestProtocolCopyThatFailsInDoubt$/^(default|18)$/VACUUM",
		old: "	return b.progress == batchChecked && b.unsynced == nothingUnsynced\n", text: "	return b.progress == batchChecked\n"},

	// What guarded tables ask for.
	{name: "the check in front of a transaction sets no claim", file: theChecks, in: ofGuards, tests: itsClaim,
		old: `number, number, claim(fence, number, claims))`, text: `number, number, claim(fence, number, false))`},
	{name: "the check in a block sets no claim", file: theChecks, in: ofGuards, tests: itsClaim,
		old: `checkSQL(refuse, fence, worker, incarnation, "$1", "$2", claim(fence, "$1", claims)+inReadCommitted)`, text: `checkSQL(refuse, fence, worker, incarnation, "$1", "$2", claim(fence, "$1", false)+inReadCommitted)`},
	{name: "no claim of the session in front of CALL and DO", file: "proxy/protocol/inject_message.go", in: ofGuards, tests: "^TestAClaimThatIsLostInAPipeline$/^default$",
		old: "	if m.batch.claimed || !alone", text: "	if m.checks.fence > 0 || !alone"},
	{name: "no claim of the session at rest", file: "proxy/protocol/inject_message.go", in: ofGuards, tests: "^TestPipelinesOfQueries$/^default$",
		old: "	if m.claimIsDue() {", text: "	if m.checks.fence < 0 {"},
	{name: "a batch does not wait to claim at rest", file: "proxy/protocol/own_sync.go", in: ofReplies, tests: "^TestProtocolGuardedTables$/^18$/DO_behind",
		old: "	case (m.claimIsDue() || ", text: "	case (m.checks.fence < 0 || "},
	{name: "what resets the claim of the session at rest leaves it", file: "proxy/protocol/follow.go", in: ofGuards, tests: "^TestPipelinesOfQueries$/^default$",
		old: "		m.checks.claimed = 0\n", text: "		m.checks.claims = m.checks.claims || false\n"},
	{name: "a guard of another resource ends the session", file: "proxy/protocol/errors.go", in: ofGuards, tests: "^TestAGuardOfAnotherResource$",
		old: "ok && (st != nil || found.Resource == m.config.Resource)", text: "ok"},
	// A leader was refused.
	{name: "what was executed since leaves the claim of the session", file: "proxy/protocol/follow.go", in: ofGuards, tests: "^TestAClaimThatIsLostInAPipeline$/^default$",
		old: "	m.batch.claimed = false\n", text: ""},
	{name: "every claim is current", file: theGuards, in: ofTheGuard, tests: "^TestClaimsAreComparedWithTheFence$",
		old: "::pg_catalog.text OPERATOR(pg_catalog.=) claim) IS NOT TRUE THEN", text: "::pg_catalog.text OPERATOR(pg_catalog.<>) '') IS NOT TRUE THEN"},
	{name: "a guard compares the claim without a lock", file: theGuards, in: ofTheGuard, tests: "^TestAWriteUnderAClaimHoldsOffAGrant$",
		old: "pg_catalog.pg_sequence_last_value(seq)::", text: "(SELECT s.last_value FROM fencepost.epoch_%1$s s)::"},
	{name: "only the role that writes counts, and not who has logged in", file: theGuards, in: ofTheGuard, tests: "^TestWritesInTheNameOfTheOwnerPass$",
		old: "IF may AND coalesce(claim, '') <> '' THEN", text: "IF may AND coalesce(claim, '') = 'x' THEN"},
	{name: "a role that is no worker's locks the sequence", file: theGuards, in: ofTheGuard, tests: "^TestARoleThatIsNoWorkersTakesNoLock$",
		old: "IF may AND coalesce(claim, '') <> '' THEN", text: "IF coalesce(claim, '') <> '' THEN"},
	{name: "the stamp is what the client says", file: theGuards, in: ofTheGuard, tests: "^TestStampIsTheClaim$",
		old: "|| ' := claim;'", text: "|| ' := coalesce(NEW.' || quote_ident(stamp) || ', claim::pg_catalog.int8);'"},
}
