package main

// mutation is one fault that is planted in the fence.
type mutation struct {
	name  string
	file  string // path in the tree
	old   string // text that must occur in the file exactly once
	text  string // its replacement
	tests string // pattern of the tests that must notice the fault
	in    string // package of the tests; ./test/safety if empty
}

// Tests on real servers that take a few seconds.
const (
	theWrites = "^TestFollowersWriteNothing$/^18$/^(insert_into|update_c)"
	toldAgain = "^TestSafetyAnEpochIsAnnouncedToAWorkerOnce$"
	ends      = "^TestSafetyAGrantEndsNotedBackends$"
)

const (
	ofTheGate  = "./proxy/gate"
	ofTheCore  = "./proxy/protocol"
	ofThePumps = "./proxy"
	ofTheFence = "./fencing/fence"
	ofTheGuard = "./internal/guard"
	ofElection = "./election"
	ofGuards   = "./test/guards"
	ofSeveral  = "./test/several"
	ofSystem   = "./test/system"

	theJudge     = "proxy/protocol/decide.go"
	theFates     = "fencing/sqltext/fate.go"
	theRelay     = "proxy/protocol/relay.go"
	theMessages  = "proxy/protocol/relaying.go"
	theExchanges = "proxy/protocol/exchange.go"
	theBatches   = "proxy/protocol/batch.go"
	theChoices   = "proxy/protocol/choose.go"
	theDiscards  = "proxy/protocol/discard.go"
	theUpPump    = "proxy/pump_up.go"
	theRegistry  = "migrations/registry.sql"
	theGuards    = "migrations/guards.sql"
)

// table lists the faults. To add one, choose old so that it is unique, and a text that
// compiles. A comment marks those that were once real leaks.
var table = []mutation{
	// When a session is relayed.
	{name: "what is sent on needs no reason", file: "proxy/gate/reason.go", in: ofTheGate, tests: "^TestNothingPasses",
		old: "	if r.why == none {\n		panic", text: "	if r.why > unfenced {\n		panic"},
	{name: "without a resource all is let through", file: "proxy/policy.go", tests: "^TestUnfencedConnections$",
		old: "case policy.Unfenced == UnfencedAllow, !fencing.Checking:", text: "case policy.Unfenced != UnfencedRefuse, !fencing.Checking:"},
	{name: "a session goes on in a process that would not let it write", file: "proxy/join.go", in: "./test/connection", tests: "^TestPassingIsRefused$",
		old: "return policy.Unfenced == UnfencedAllow", text: "return policy.Unfenced != UnfencedRefuse"},
	{name: "a leader's session goes on as one without a fence", file: "proxy/arrival.go", in: "./test/connection", tests: "^TestTheSessionsOfALeaderArePassedOnTogether$",
		old: "= protocol.ModeFenced, s.forCore()", text: "= protocol.ModePassing, s.forCore()"},
	{name: "the new process does not know the entry of a session that was passed on", file: "proxy/arrival.go", in: "./test/connection", tests: "^TestTheEntryOfASessionThatWasPassedOnIsLost$",
		old: "x.registrations = registrations{{membership: s, entry: p.Entry, epoch: p.Epoch}}", text: "_ = p.Entry"},
	{name: "a leader is passed on while a session of its is in a transaction", file: "proxy/passing_leader.go", in: "./test/connection", tests: "^TestTheSessionsOfALeaderArePassedOnTogether$",
		old: "case x.isRegistered():", text: "case false:"},
	{name: "sessions of a leader begin before it leads in the new process", file: "internal/service/upgrade/sessions.go", in: "./internal/service/upgrade", tests: "^TestSessionsArePassedTogether$",
		old: "range slices.Backward(accepted)", text: "range slices.All(accepted)"},
	{name: "a candidacy is not held while it is passed on", file: "election/decide.go", in: ofElection, tests: "^TestWhoeverIsPassedOnIsHeld$",
		old: "case s.move.holds():\n\t\treturn nothing", text: "case false:\n\t\treturn nothing"},
	{name: "who arrives campaigns while another process has it", file: "election/members.go", in: ofElection, tests: "^TestWhoeverArrivesDoesNotCampaign$",
		old: "arrives := campaigns && req.Arrives", text: "arrives := false"},
	{name: "who has passed a candidacy on keeps its lease", file: "election/passing.go", in: ofElection, tests: "^TestACandidacyIsPassedOn$",
		old: "c.held, c.leftovers = holding{}, leftovers{}", text: "c.leftovers = leftovers{}"},
	{name: "who takes a candidacy over does not ask the fence", file: "election/passing.go", in: ofElection, tests: "^TestAGrantWhileACandidacyIsPassedOn$",
		old: "fencing.Term{Award: c.award(&l.Lease, l.Epoch, 0), Epoch: l.Epoch}", text: "fencing.Term{}"},
	{name: "a session that was passed on does not end for a grant", file: "proxy/membership.go", in: ofSystem, tests: "^TestALeaderThatWasPassedOnIsSuperseded$/^postgres$/^frozen_false$",
		old: "case s.forSession.Load(): // what was chosen", text: "case false: // what was chosen"},
	{name: "a proxy that was upgraded is taken for gone", file: "fencing/store/server.go", in: ofSystem, tests: "^TestALeaderThatWasPassedOnKeepsItsLease$/^postgres$",
		old: "c.incarnation = $3)", text: "c.incarnation = $3 AND false)"},
	{name: "the epoch that was announced does not matter", file: theChoices, in: ofTheCore, tests: "^TestBecomingLeader$/^18$",
		old: "now.CanWrite() && st.epochs.current == now.Epoch", text: "now.CanWrite()"},
	{name: "a lease that is not confirmed is one", file: theChoices, tests: "^TestALapsedSessionIsUnregistered$",
		old: "now.CanWrite() && st.epochs.current == now.Epoch", text: "now.Epoch != 0 && st.epochs.current == now.Epoch"},
	{name: "a session is relayed without a registration", file: theRelay, in: ofTheCore, tests: "^TestRegistrationThatFails$",
		old: "return s.leads() && s.isRegisteredFor(s.currentChoice()) || s.leftToGuards()", text: "return s.leads() || s.leftToGuards()"},
	{name: "what a leader sends is not preceded by its registration", file: "proxy/protocol/client.go", in: ofTheCore, tests: "^TestBecomingLeader$/^18$",
		old: "s.leads() && !s.isRegisteredFor(s.currentChoice()) {\n		return NeedRegister", text: "s.leads() && !s.isRegisteredFor(s.currentChoice()) {\n		return NeedNothing"},
	{name: "a relay goes on when the lease is not confirmed any more", file: theMessages, tests: "^TestALapsedSessionIsUnregistered$",
		old: "(begins(f.Type) || f.Type == 'd') && (s.isAtRest() || r.lost)", text: "begins(f.Type) && r.lost"},
	{name: "a session that leaves the relay stays registered", file: theMessages, tests: "^TestALapsedSessionIsUnregistered$",
		old: "		case len(s.registered) > 0:\n", text: "		case len(s.registered) > 9:\n"},
	{name: "writes are left to guards that are not there", file: theRelay, in: ofGuards, tests: "^TestWithoutAGuardNothingIsLeftToGuards$",
		old: "st.Epoch == 0 && st.Holder.Guards > 0 &&", text: "st.Epoch == 0 &&"},
	{name: "what a leader has prepared is not asked for", file: theRelay, in: ofTheCore, tests: "^TestPreparedBefore$/^18$",
		old: "s.needsNames, s.unknownUnnamed = true, true", text: "s.needsNames, s.unknownUnnamed = false, false"},
	{name: "an announcement counts while messages of the client are pending", file: "proxy/protocol/api.go", in: ofTheCore, tests: "^TestWhatAnnounces$/^18$",
		old: "	if !s.Is(Quiet) {\n		return nil\n	}\n	for", text: "	for"},
	{name: "a refusal does not announce the epoch", file: "proxy/protocol/server.go", in: ofTheCore, tests: "^TestBecomingLeader$/^18$",
		old: "		one.epochs.expect(one.Status().Epoch)\n", text: "		_ = one\n"},

	// What a relay looks at.
	{name: "a relay does not see the name of Fencepost, nor PREPARE TRANSACTION", file: "proxy/protocol/relay_texts.go", tests: "^TestPreparedTransactionIsRefused$",
		old: "sqltext.ConcernsFencepost(text) || s.choices.session", text: "s.choices.session"},
	{name: "a relay looks for PREPARE TRANSACTION only behind Fencepost's name", file: "fencing/sqltext/concerns.go", in: "./fencing/sqltext", tests: "^TestConcernsFencepost$",
		old: "if !lone && startsFold(rest, prepare) {", text: "if !lone && false {"},
	// A leak.
	{name: "an error before the last Sync makes a batch a skipped one", file: "proxy/protocol/pending.go", tests: "^TestNothingIsPreparedAfterAFailedBatch$",
		old: "for p.queue.len() > 0 && p.queue.first() != kindSync {", text: "for p.queue.len() > 0 {"},
	{name: "a relay that has lost count takes messages for skipped ones", file: "proxy/protocol/pending.go", in: ofTheCore, tests: "^TestARelayThatHasLostCountSkipsNothing$",
		old: "return p.skipping && p.maybe == 0 && !p.lost", text: "return p.skipping && p.maybe == 0"},
	{name: "a text is read by settings that may have changed", file: "proxy/protocol/relay_texts.go", tests: "^TestNothingIsPreparedUnseen$",
		old: "if sqltext.DependsOnSettings(sql) && sqltext.PreparesTransaction(sql) {", text: "if false {"},

	// How a session that may only read stays read-only.
	{name: "the startup does not make a session read-only", file: "proxy/join.go", tests: "^TestSafetyFollowersInABlock$",
		old: "x.handshake.Ask(protocol.SetupSQL)", text: "x.handshake.Ask(\"SET default_transaction_read_only = off\")"},
	{name: "a connection stays in a candidacy that turns out to be over", file: "proxy/join.go", tests: "^TestAWorkerThatWasSupersededUnnoticedStandsBy$",
		old: "	if refused { //", text: "	if refused && false { //"},
	{name: "a session that is not read-only is not made so", file: theExchanges, in: ofTheCore, tests: "^TestOwnExchangeThatFails$",
		old: "	case s.txn == 'I' && !s.settings.readOnly:", text: "	case s.txn == 'I' && !s.settings.readOnly && s.needsNames:"},
	{name: "what has changed the default is not undone", file: "proxy/protocol/settings.go", in: ofTheCore, tests: theWrites,
		old: "		c.readOnly = value == \"on\"", text: "		c.readOnly = c.readOnly || value == \"on\""},
	{name: "what was set at the startup holds for ever", file: theExchanges, in: ofTheCore, tests: theWrites,
		old: "	case s.txn == 'T' && s.settings.unsure:", text: "	case s.txn == 'T' && s.settings.unsure && s.needsNames:"},
	{name: "a block that may be READ WRITE is taken for a read-only one", file: "proxy/protocol/server.go", in: ofTheCore, tests: theWrites,
		old: "		c.unsure, s.choices.block = true, noBlock", text: "		s.choices.block = noBlock"},
	{name: "a part of a text does not end at COMMIT", file: "proxy/protocol/client.go", in: ofTheCore, tests: theWrites,
		old: "		if (overBy(&part[i]) != notOver &&", text: "		if (overBy(&part[i]) == mayWrite &&"},
	{name: "a part of a text does not end at READ WRITE", file: "proxy/protocol/client.go", in: ofTheCore, tests: theWrites,
		old: "		if (overBy(&part[i]) != notOver &&", text: "		if (overBy(&part[i]) == ended &&"},
	{name: "a COMMIT in a batch ends nothing", file: theBatches, in: ofTheCore, tests: theWrites,
		old: "		x.over = max(by, x.over)\n", text: "		_ = max(by, x.over)\n"},
	{name: "a BEGIN behind a COMMIT in a batch is followed by all", file: theBatches, in: ofTheCore, tests: theWrites,
		old: "		if by == notOver {\n			x.over = mayWrite", text: "		if by == notOver {\n			x.over = notOver"},
	{name: "what an Execute of who knows what has ended is not waited for", file: theBatches, in: ofTheCore, tests: theWrites,
		old: "	if m.runs && s.awaitsRuns() {", text: "	if m.runs && s.awaitsRuns() && s.needsNames {"},
	{name: "the tag of an unknown statement says nothing", file: "proxy/protocol/names.go", in: ofTheCore, tests: "^TestFollowersWriteNothing$/^18$/^(insert_into|update_c|delete_from)",
		old: "	case \"COMMIT\", \"ROLLBACK\", \"DISCARD ALL\",", text: "	case \"ROLLBACK\", \"DISCARD ALL\","},

	// What is refused by its text.
	{name: "what evades read-only mode passes", file: theFates, in: ofTheCore, tests: "^TestTemporaryTables$",
		old: "	case !keepsReadOnly, st.Does(EvadesReadOnly):", text: "	case !keepsReadOnly:"},
	{name: "a text that cannot be read passes", file: theFates, in: ofTheCore, tests: "^TestFollowersWriteNothing$/^18$/^(analyze_c|reindex_table_c)$",
		old: "	case st == nil:\n		return RefusedByText", text: "	case st == nil:\n		return Passes"},
	{name: "a command that is not known passes", file: theJudge, in: ofTheCore, tests: "^TestFollowersWriteNothing$/^18$/^(vacuum|notify|do|call|copy)",
		old: "		r, need := s.refuseWrite(\"\")\n		return fencing.CountsAsWrite(r, st.WhyNoRead()), need\n", text: "		return nil, NeedNothing\n"},
	{name: "NOTIFY is a read", file: "fencing/sqltext/classify.go", in: ofTheCore, tests: "^TestFollowersWriteNothing$/^18$/^notify",
		old: "	case n.GetFetchStmt() != nil, n.GetClosePortalStmt()", text: "	case n.GetNotifyStmt() != nil, n.GetFetchStmt() != nil, n.GetClosePortalStmt()"},
	{name: "before 16 no read needs a proof", file: theFates, in: ofTheCore, tests: "^TestFollowersWriteNothing$/^15$/^(select_wr|select_frees)",
		old: "	case st.Read && !keepsReadOnly:", text: "	case st.Read && false:"},
	{name: "a prepared statement is proven once", file: theBatches, in: ofTheCore, tests: "^TestProvenAgain$/^15$",
		old: "		m.refusal, need = s.decide(m.prepared.statement, !m.prepared.proven)\n", text: ""},
	{name: "a prepared statement of who knows what may be used", file: "proxy/protocol/names.go", in: ofTheCore, tests: "^TestPreparedBefore$/^18$",
		old: "	return s.needsNames || s.unknownUnnamed && (full || before16 || len(name) == 0) ||", text: "	return s.unknownUnnamed && full ||"},
	{name: "what is refused is sent", file: "proxy/protocol/refuse.go", in: ofTheCore, tests: "^TestFollowersWriteNothing$/^18$/^(vacuum|notify)",
		old: "	return string(sql) + refusedSuffix\n", text: "	return string(sql) + refusedSuffix[:1]\n"},
	{name: "SELECT INTO is a read", file: "fencing/sqltext/findings.go", in: "./fencing/sqltext", tests: "^TestClassify$",
		old: "	case *pgquery.IntoClause:", text: "	case *pgquery.IntoClause:\n		if true {\n			break\n		}"},

	// What is discarded.
	{name: "a discarded Execute is sent", file: theBatches, in: ofTheCore, tests: "^TestDiscardedWritesAreAnsweredAsByPostgres$",
		old: "	if m.discards {", text: "	if m.discards && s.needsNames {"},
	{name: "a discarded write is not recorded", file: theDiscards, in: ofTheCore, tests: "^TestDiscardedWritesAreAnsweredAsByPostgres$",
		old: "	s.emit(Event{Kind: EventRefused, Rejection: &r})\n", text: ""},

	// What a client has chosen.
	{name: "what was chosen for a block outlives it", file: theChoices, in: ofTheCore, tests: "^TestChoosingForABlock$/^18$",
		old: "	c.local, c.block, c.denied, c.deniedFor = nil, noBlock, nil, nil", text: "	c.local, c.denied, c.deniedFor = nil, nil, nil"},
	{name: "one registered resource covers all that were chosen", file: theChoices, in: ofSeveral, tests: "^TestSafetyATransactionOfTwo$",
		old: "		if !slices.Contains(s.registered, st) {\n			return false", text: "		if !slices.Contains(s.registered, st) && len(s.registered) == 0 {\n			return false"},
	{name: "a block that may have run something chooses", file: theChoices, in: ofSeveral, tests: "^TestSafetyAChoiceComesTooLate$",
		old: "	o.add(opensBlock, \"SET TRANSACTION NOT DEFERRABLE\")", text: "	o.add(opensBlock, \"SET LOCAL work_mem = '4MB'\")"},
	{name: "a choice is made before the server was asked", file: theChoices, in: ofTheCore, tests: "^TestChoosingForABlock$/^18$",
		old: "		return NeedRegister\n	}\n	return NeedRoom\n}", text: "		return NeedRegister\n	}\n	return NeedNothing\n}"},

	// What a client is told, and what it has decided before.
	{name: "a worker that leads again is told at each startup", file: "proxy/membership.go", tests: toldAgain,
		old: "knows := !cand.SupersededBefore() || !s.announcePerConnection && cand", text: "knows := cand.SupersededBefore() || cand"},
	{name: "nobody notes who shares an epoch", file: "migrations/grant.sql", in: ofSystem, tests: "^TestSafetyAWorkerThatSharedAnEpochStartsOver$/^a_pause$",
		old: "        IF rec.worker IS DISTINCT FROM worker THEN", text: "        IF false THEN"},
	{name: "an epoch of the same token is left out", file: "election/request.go", in: ofSystem, tests: "^TestSafetyATokenThatLedElsewhereStartsOver$",
		old: "	case c.token > 0:\n		except = \"\"\n", text: "	case c.token > 0:\n"},
	{name: "what was told of the epoch before counts for a token", file: "election/announce.go", in: ofSystem, tests: "^TestSafetyASharedTokenStartsOverWhereTheWorkerWasKnown$/^it_connects_again$",
		old: "c.token == 0 && k.epoch+1 == e", text: "k.epoch+1 == e"},
	{name: "a connection joins a shared token unexamined", file: "election/resource.go", in: ofSystem, tests: "^TestSafetyASharedTokenStartsOverOnEachConnection$",
		old: "	if err := c.examineShared(ctx); err != nil {", text: "	if err := error(nil); err != nil {"},
	{name: "who leaves a superseded candidacy for another token does not say so", file: "proxy/memberships.go", in: ofSystem, tests: "^TestSafetyADiscardingConnectionStartsOver$",
		old: "		former.ConnectionSuperseded() // more than once if SET fails\n", text: ""},
	{name: "a connection that is cut says nothing of the resources that it chose", file: "proxy/membership.go", in: ofSystem, tests: "^TestSafetyAPoolLearnsAgainOfAResourceThatItChose$",
		old: "		b.noteIfSuperseded()\n", text: ""},
	{name: "a token is taken to be decided upon when it is set", file: theUpPump, in: ofSystem, tests: "^TestSafetyWhatWasSentBeforeATokenWasKnownStartsOver$",
		old: "x.rejoin(x.context(), need.Join.Token, u.startWaiting())", text: "x.rejoin(x.context(), need.Join.Token, time.Now())"},
	{name: "what has arrived in part is as old as the rest", file: theUpPump, in: ofSystem, tests: "^TestSafetyWhatHasArrivedInPartStartsOver$",
		old: "		u.startWaiting()\n	}\n	u.clearWaiting()", text: "	}\n	u.clearWaiting()"},
	{name: "what was read is as old as the wait that follows", file: theUpPump, in: ofThePumps, tests: "^TestWhatWasReadIsAsOldAsTheRead$",
		old: "		u.waiting = u.arrived\n", text: ""},
	{name: "a write that blocks is no wait", file: theUpPump, in: ofThePumps, tests: "^TestAWriteThatBlocksIsAWait$",
		old: "	ends, began := x.watchWrite(), time.Now()", text: "	ends, began := x.watchWrite(), time.Now().Add(time.Hour)"},
	{name: "a connection from before the worker was told counts as a later one", file: "proxy/startup/reader.go", tests: toldAgain,
		old: "				s.Began = r.began\n", text: "				s.Began = time.Now()\n"},

	// The registry.
	{name: "an entry that is let go stays in the registry", file: "proxy/registration.go", tests: "^TestALapsedSessionIsUnregistered$",
		old: "	x.mu.Unlock()\n	x.unregister(ctx, deleted)\n}", text: "	x.mu.Unlock()\n	_ = deleted\n}"},
	{name: "a refused registration is one", file: theChoices, in: ofTheCore, tests: "^TestRegistrationThatFails$/^18$",
		old: "	if r == nil {\n		s.markRegistered()", text: "	if r == nil || !r.Usage {\n		s.markRegistered()"},
	{name: "an entry that is missing is not noticed", file: "proxy/registered.go", tests: "^TestSafetyALostRegistrationEndsTheSession$",
		old: "		lost[entry] = true\n", text: "		lost[entry] = false\n"},
	{name: "nobody is told that a grant drains", file: "election/drains.go", in: ofElection, tests: "^TestDraining",
		old: "had != 0 && had <= epoch {", text: "had != 0 && had > epoch {"},
	{name: "nobody compares the sessions with the registry", file: "proxy/server.go", tests: "^TestSafetyALostRegistrationEndsTheSession$",
		old: "	s.checks.Go(func() { s.verifyRegistrations(ctx) })\n", text: ""},
	{name: "enter does not ask when the backend was started", file: theRegistry, in: ofTheFence, tests: "^TestABackendThatIsNotThereIsNotRegistered$",
		old: " AND timestamptz_send(a.backend_start) <= decode(seen, 'hex');", text: ";"},
	{name: "enter does not ask when the server was started", file: theRegistry, in: ofTheFence, tests: "^TestABackendThatIsNotThereIsNotRegistered$",
		old: "IF encode(timestamptz_send(pg_postmaster_start_time()), 'hex') <> started THEN", text: "IF false THEN"},
	{name: "a claim goes past a grant that waits", file: "migrations/fence.sql", in: ofTheFence, tests: "^TestSafetyAClaimAfterAGrantSeesItsEpoch$",
		old: "WHERE f.id = fence FOR SHARE;", text: "WHERE f.id = fence FOR KEY SHARE;"},
	{name: "a claim is believed that it has passed", file: "migrations/fence.sql", in: ofTheFence, tests: "^TestSafetyAClaimAfterAGrantSeesItsEpoch$",
		old: " OR NOT fencepost.has_row(fence) THEN", text: " THEN"},
	{name: "a registration does not lock the row", file: theRegistry, in: ofTheFence, tests: "^TestSafetyAGrantSeesARegistrationUnderWay$",
		old: "fencepost.fence%ROWTYPE := fencepost.share(fence);", text: "fencepost.fence%ROWTYPE := (SELECT f FROM fencepost.fence f WHERE f.id = fence);"},
	{name: "a claim does not lock the row", file: theGuards, in: ofTheFence, tests: "^TestSafetyAClaimAfterAGrantSeesItsEpoch$",
		old: "    rec := fencepost.pass((SELECT f.id FROM fencepost.fence f WHERE f.resource = resource));", text: "    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.resource = resource;"},
	{name: "a grant does not wait for what has locked the row", file: "migrations/grant.sql", in: ofTheFence, tests: "^TestSafetyATransactionInTheWayIsEndedAfterTheGrace$",
		old: "    PERFORM FROM fencepost.fence f WHERE f.id = before.id FOR UPDATE;\n", text: ""},
	{name: "who keeps an ended backend from ending is left alone", file: "fencing/fence/watch.go", in: ofTheFence, tests: "^TestALockOnATemporaryTableOfTheLeaderBlocksNoTakeover$",
		old: "err == nil && len(late) > 0", text: "err == nil && len(late) > 0 && false"},
	{name: "a connection pooler is taken for Postgres", file: "proxy/handshake/backend.go", in: ofSystem, tests: "^TestAPoolerIsNotPostgres$",
		old: "case binary.BigEndian.Uint32(values[1]) != b.PID:", text: "case binary.BigEndian.Uint32(values[1]) == 0:"},
	{name: "a drain reads a view that anybody can lock", file: theRegistry, in: ofTheFence, tests: "^TestLockedSystemViewsBlockNoTakeover$",
		old: "SELECT FROM pg_stat_get_activity(NULL) a WHERE a.pid = r.pid", text: "SELECT FROM pg_stat_activity a WHERE a.pid = r.pid"},
	{name: "a drain reads the catalog of all databases", file: theRegistry, in: ofTheFence, tests: "^TestALockedCatalogOfAllDatabasesBlocksNoTakeover$",
		old: "here  oid := fencepost.here();", text: "here  oid := (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());"},
	{name: "a drain ends nothing", file: theRegistry, in: ofTheFence, tests: ends,
		old: "        EXIT WHEN NOT FOUND;\n", text: "        EXIT;\n"},
	{name: "a drain does not wait for the backends that it has ended", file: theRegistry, in: ofTheFence, tests: "^TestAFrozenNotedBackendIsNamed$",
		old: "        EXIT WHEN NOT FOUND;\n", text: "        EXIT WHEN NOT FOUND OR cardinality(ended) > 0;\n"},
	{name: "a drain does not test before its first signal", file: theRegistry, in: ofTheFence, tests: "^TestAGrantThatMayNotEndAllEndsNoOne$",
		old: "        IF fault IS NULL THEN\n", text: "        IF true THEN\n"},
	{name: "a drain waits for what is idle", file: theRegistry, in: ofTheFence, tests: "^TestSafetyAGrantEndsAnIdleBackendAtOnce$",
		old: " OR a.state = 'idle' AND clock_timestamp() > began + idle)", text: ")"},
	{name: "a drain ends what works at once", file: theRegistry, in: ofTheFence, tests: "^TestSafetyAGrantEndsAnIdleBackendAtOnce$",
		old: "OR a.state = 'idle' AND clock", text: "OR clock"},
	{name: "an entry is that of any backend with its process id", file: theRegistry, in: ofTheGuard, tests: "^TestAnEntryOfAnEarlierBackendIsNone$",
		old: "\n        AND r.backend_start = (SELECT", text: "\n        AND r.backend_start <= (SELECT"},
	{name: "an epoch that is over may be claimed", file: theGuards, in: ofTheGuard, tests: "^TestClaimNamesItsMistakes$",
		old: "    ELSIF epoch < rec.epoch THEN", text: "    ELSIF epoch < 0 THEN"},
	{name: "an epoch that is yet to come may be claimed", file: theGuards, in: ofTheGuard, tests: "^TestClaimNamesItsMistakes$",
		old: " OR epoch <= 0 OR epoch > rec.epoch THEN", text: " OR epoch <= 0 THEN"},
	{name: "a drain does not wait for what works", file: theRegistry, in: ofTheFence, tests: "^TestABusyBackendHasTheGrace$",
		old: "            WHERE r.fence = ANY (fences) ORDER BY hidden DESC", text: "            WHERE r.fence = ANY (fences) AND a.state <> 'idle in transaction' ORDER BY hidden DESC"},
	{name: "a drain leaves out what a proxy has registered twice", file: theRegistry, in: ofTheFence, tests: "^TestSafetyAGrantEndsNotedBackends$",
		old: "AND a.backend_start = r.backend_start\n                    WHERE r.fence = ANY (fences) AND (", text: "AND a.backend_start = r.backend_start\n                    WHERE r.fence = ANY (fences) AND r.note = 0 AND ("},
	{name: "a drain leaves out what is registered under a number without a row", file: theRegistry, tests: "^TestSafetyFenceRowsDeletedByHand$",
		old: "fences integer[] := fence || coalesce(", text: "fences integer[] := ARRAY[fence]; strangers integer[] := coalesce("},
	{name: "an entry under a number without a row is not missing", file: "fencing/fence/drains.go", tests: "^TestSafetyFenceRowsDeletedByHand$",
		old: "r JOIN fencepost.fence f ON f.id = r.fence WHERE", text: "r WHERE"},
	{name: "a grant does not drain", file: "migrations/grant.sql", in: ofTheFence, tests: "^TestSafetyAGrantEndsNotedBackends$",
		old: "    PERFORM fencepost.drain(before.id, since, grace, patience);\n", text: ""},
	{name: "nobody sweeps the registry while nobody is granted an epoch", file: "migrations/handover.sql", in: ofTheFence, tests: "^TestTheRegistryStaysSmall$",
		old: "        PERFORM fencepost.sweep();\n", text: "        NULL;\n"},
	{name: "a sweep deletes the entry of a backend that is there", file: theRegistry, in: ofTheFence, tests: "^TestTheRegistryStaysSmall$",
		old: "            WHERE a.pid = old.pid AND a.datid = here AND coalesce(a.backend_start = old.backend_start, true))", text: "            WHERE a.pid = old.pid AND a.datid = here AND a.backend_start > old.backend_start)"},
	{name: "an entry is deleted whatever its number is", file: theRegistry, in: ofTheFence, tests: "^TestALateDeletion",
		old: "WHERE r.fence = fence AND r.pid = pid AND r.note = note;", text: "WHERE r.fence = fence AND r.pid = pid;"},
}
