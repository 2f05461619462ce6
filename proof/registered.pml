/*
 * Registered backends: the protocol by which a grant of an epoch ends whoever may still write under
 * an older one. README.md beside this file says what is modelled and what is not.
 *
 * The model is a set of guarded steps. Each d_step or atomic block is something that happens at one
 * moment; between two of them, anything else may happen. A proxy or a worker that is slow, or frozen
 * for a time, is therefore in every run already: its next step comes late. Numbers in brackets, as
 * in [C6], are the conditions of README.md. M_... names the mutation that breaks a condition.
 *
 * Every loop uses up a budget, so that every run ends. What must be true then is in Judge.
 */

/* ---- Sizes and budgets: a configuration sets them with -D ---------------------------------- */

#ifndef CANDIDACIES
#define CANDIDACIES 2   /* candidacies, numbered in the order of their awards */
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 1      /* how often a candidacy may ask for its grant */
#endif
#ifndef SESSIONS
#define SESSIONS 2
#endif
#ifndef PIDS
#define PIDS 2          /* process ids; they are used again */
#endif
#ifndef ENTRIES
#define ENTRIES 2       /* numbers of registrations */
#endif
#ifndef CONNECTS
#define CONNECTS 1      /* server connections of a session, one after the other */
#endif
#ifndef WRITES
#define WRITES 1        /* transactions that a session's client sends */
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 0      /* grants that give up while they wait for a backend */
#endif
#ifndef LOSSES
#define LOSSES 0        /* answers of the control connection that do not arrive */
#endif
#ifndef CRASHES
#define CRASHES 0       /* crashes of Postgres */
#endif
#ifndef KILLS
#define KILLS 0         /* backends that somebody else ends */
#endif
#ifndef SWALLOWED
#define SWALLOWED 0     /* signals without effect, as with an extension that handles them itself */
#endif
#ifndef STOPS
#define STOPS 0         /* proxies that freeze for ever, or crash */
#endif
#ifndef SWEEPS
#define SWEEPS 0
#endif
#ifndef LETGO
#define LETGO 0         /* sessions may be let go while they live */
#endif
#ifndef BLOCKS
#define BLOCKS 0        /* clients send BEGIN and COMMIT as messages of their own */
#endif
#ifndef EARLY
#define EARLY 0         /* clients write before they are told an epoch */
#endif
#ifndef SUPERUSERS
#define SUPERUSERS 0    /* roles that become superusers while they are connected */
#endif
#ifndef COMPARES
#define COMPARES 0      /* comparisons of a proxy's sessions with the registry */
#endif

#define GRANTS (CANDIDACIES * ATTEMPTS)

/* some(f, x) is true if f(x, n) is true of some entry n. */
#if ENTRIES == 2
#define some(f, x) (f(x, 0) || f(x, 1))
#elif ENTRIES == 3
#define some(f, x) (f(x, 0) || f(x, 1) || f(x, 2))
#else
#define some(f, x) (f(x, 0) || f(x, 1) || f(x, 2) || f(x, 3))
#endif

/* Two workers, each at a proxy of its own. Candidacy or session x belongs to worker x % 2. */
#define workerOf(x)  ((x) % 2)
#define proxyOf(x)   workerOf(x)

/* ---- Postgres -------------------------------------------------------------------------------- */

byte fenceEpoch, fenceAward;     /* the fence: what was recorded last, committed */
byte diskEpoch, diskAward;       /* the same, flushed */
byte exclusive;                  /* the fence's lock: 1 + the grant that has it */
byte shared;                     /* the fence's lock: how many registrations have it */

/* The registry. An entry is known by its number n; bit n of `rows` says whether it is there. */
byte rows;
byte entryPid[ENTRIES], entryStart[ENTRIES], entryEpoch[ENTRIES], entrySession[ENTRIES];
byte statement[ENTRIES];         /* where the statement is that makes the entry */
#define UNUSED    0
#define SENT      1
#define HASLOCK   2
#define COMMITTED 3              /* the answer is under way */
#define REFUSED   4
#define ABORTED   5
#define STARTED   6              /* this and the next under mutations only */
#define COMPARED  7
byte deletes;                    /* deletes by number that are under way to the server */

/* Backends. The pid is the index; a backend is (pid, start). */
bool live[PIDS];
byte start[PIDS];
bool terminated[PIDS];           /* a signal has arrived, and has not taken effect yet */
bool hangup[PIDS];               /* its client connection is closed, behind what was sent */
bool readOnly[PIDS];
bool superuser[PIDS];
byte box[PIDS];                  /* a message that was forwarded and not yet read */
byte state[PIDS];
#define IDLE       0
#define RUNNING    1             /* in a transaction that has written */
#define COMMITTING 2             /* its commit is on disk, and other sessions do not see it yet */
#define INBLOCK    3             /* idle in a transaction */
#define EXITING    4
byte began[PIDS];                /* the epoch under which its last transaction began */

/* A message is its kind and, in the model only, the epoch that the client knew when it sent it. */
#define WRITE   1                /* a transaction in one message */
#define BEGIN   2
#define COMMIT  3                /* a write, and the COMMIT of the block */
#define message(kind, epoch) ((kind) + 4 * (epoch))
#define kindOf(m)  ((m) % 4)
#define epochOf(m) ((m) / 4)

#define there(pid, since) (live[pid] && start[pid] == (since))
#define gone(n)  (!there(entryPid[n], entryStart[n]))
#define bit(n)   (1 << (n))

/* ---- Grants ------------------------------------------------------------------------------------ */

byte grant[GRANTS];              /* where attempt g is; attempt k of candidacy c is c * ATTEMPTS + k */
#define ASKED     1
#define LOCKED    2
#define LISTED    3
#define SIGNALLED 4
#define GRANTED   5              /* committed; the answer is under way */
#define OUTDATED  6              /* refused: a later award is recorded */
#define FAILED    7              /* rolled back */
#define LOST      8              /* nobody waits for the answer */
#define RETURNED  9
byte list[GRANTS];               /* the entries that the grant has read */
#ifdef M_LOOKS_UP_BEFORE
byte aim[GRANTS];                /* the pids that it has looked up */
#endif
byte awards;                     /* how many awards the lease service has made */
byte attempt[CANDIDACIES];       /* the attempt whose answer the candidacy waits for */
byte holds[2];                   /* the epoch that the worker's newest candidacy knows it was granted */

/* ---- Sessions, as their proxy knows them -------------------------------------------------------- */

byte server[SESSIONS];           /* 1 + the pid of its backend; 0: not connected */
byte since[SESSIONS];            /* the start of that backend, as the session's own stream said */
byte connects[SESSIONS];
byte told[SESSIONS];             /* the epoch announced to the connection */
byte asking[SESSIONS];           /* 1 + the number of the registration that is not answered */
byte registered[SESSIONS];       /* the epoch of the confirmed registration; 0: not registered */
byte number[SESSIONS];           /* the number of that registration */
byte input[SESSIONS];            /* a message that the client has sent and that was not forwarded */
byte writes[SESSIONS];
bool inBlock[SESSIONS];          /* the client has sent BEGIN, and no COMMIT */
bool stopped[2];                 /* proxies that are frozen for ever, or gone */

byte entries;                    /* numbers given to registrations */
byte timeouts = TIMEOUTS, losses = LOSSES, crashes = CRASHES, kills = KILLS, swallowed = SWALLOWED,
	stops = STOPS, superusers = SUPERUSERS;

#define pidOf(s)  (server[s] - 1)
#define here(s)   there(pidOf(s), since[s])
#define connected(s) (server[s] && !stopped[proxyOf(s)])   /* and its proxy can act */
#define linked(s)    (connected(s) && here(s))             /* and its backend is there */
/* [C7] At rest: all that was forwarded was answered, and the last answer said "idle". */
#define atRest(s) (box[pidOf(s)] == 0 && state[pidOf(s)] == IDLE)
/* The epoch that the candidacy of the session holds, as far as the proxy knows. */
#define held(s)   holds[workerOf(s)]

/* ---- What only the properties look at ----------------------------------------------------------- */

byte top;                        /* the highest epoch whose grant has committed */
byte topAward;                   /* its award */
byte epochGiven[CANDIDACIES];    /* the epoch that was granted to a candidacy */
byte prepared;                   /* 1 + the epoch of a prepared transaction */

hidden byte i, j, sent;          /* used within one step only */

/* A property has a name, which the checker prints when it does not hold. */
hidden byte G1_nothing_commits_late, G1_all_is_visible, G2_epochs_grow, G2_a_repeat_keeps_its_epoch,
	G3_written_under_the_epoch_told, G3_begun_under_the_epoch, every_grant_returns, nobody_else_is_ended,
	a_repeat_ends_nobody, a_doomed_grant_ends_nobody, no_stranger_is_registered, only_lost_entries_are_missed;
inline must(property, condition) { property = (condition); assert(property) }

/* G1: what wrote under an older epoch never commits. Epoch 0 is no epoch. */
inline mayCommit(epoch) { must(G1_nothing_commits_late, (epoch) > 0 && (epoch) >= top) }

/* G1: what was committed under an older epoch is visible when the grant commits. */
inline allVisible(epoch) {
	for (i : 0 .. PIDS - 1) {
		must(G1_all_is_visible, !(live[i] && state[i] == COMMITTING && began[i] < (epoch)))
	}
}

/* ---- The grant: one statement, which runs at the server whatever becomes of its proxy ------------- */

#define waiting(g) (grant[g] == LISTED || grant[g] == SIGNALLED)
#define running(g) (grant[g] >= ASKED && grant[g] <= SIGNALLED)

#if defined(M_SPARES_OWN)
#define reads(g, n) (rows & bit(n) && workerOf(entrySession[n]) != workerOf((g) / ATTEMPTS))
#elif defined(M_FILTERS_BY_EPOCH)
#define reads(g, n) (rows & bit(n) && entryEpoch[n] < fenceEpoch)
#else
#define reads(g, n) (rows & bit(n))     /* [C13] whoever's it is, under whatever epoch */
#endif

inline readRegistry(g) {
	list[g] = 0;
	for (i : 0 .. ENTRIES - 1) {
		if :: reads(g, i) -> list[g] = list[g] | bit(i) :: else fi
	};
	skip
}

/* [C2] Entries and backends are looked up anew each time: entries only go while the grant has the lock.
   [C9] A backend is known by its pid and its start. */
#if defined(M_CACHED_BACKENDS)
byte cachedStart[GRANTS * PIDS];
#define stays(g, n) (list[g] & rows & bit(n) && cachedStart[(g) * PIDS + entryPid[n]] == entryStart[n])
#elif defined(M_ENDS_BY_PID)
#define stays(g, n) (list[g] & rows & bit(n) && live[entryPid[n]])
#else
#define stays(g, n) (list[g] & rows & bit(n) && !gone(n))
#endif
#ifdef M_ENDS_BY_PID
#define ends(g, n) stays(g, n)
#else
#define ends(g, n) (list[g] & rows & bit(n) && !gone(n))
#endif
#define cannotEnd(g, n) (ends(g, n) && superuser[entryPid[n]])
#ifdef M_SIGNALS_ONCE
#define toSignal(g, n) (ends(g, n) && grant[g] == LISTED)
#else
#define toSignal(g, n) (ends(g, n) && (grant[g] == LISTED || !terminated[entryPid[n]])) /* [C2] again and again */
#endif
#define signals(g, pid, n) (list[g] & bit(n) && entryPid[n] == (pid) && entryStart[n] == start[pid])

inline unlock(g) {
	if :: exclusive == g + 1 -> exclusive = 0 :: else fi
}

inline rollBack(g) { list[g] = 0; unlock(g); grant[g] = FAILED }

/* [C12] The fence is recorded in the transaction that has drained, and flushed before anybody is told. */
inline record(c, epoch) {
	fenceEpoch = epoch;
	fenceAward = c + 1;
#ifndef M_NOT_FLUSHED
	diskEpoch = fenceEpoch;
	diskAward = fenceAward
#endif
}

/* The grant has committed. G2: a new epoch is above all before it, and so is its award. */
inline succeed(g, c) {
	if
	:: epochGiven[c] == 0 -> must(G2_epochs_grow, fenceEpoch > top && c + 1 > topAward); epochGiven[c] = fenceEpoch
	:: else -> must(G2_a_repeat_keeps_its_epoch, fenceEpoch == epochGiven[c])
	fi;
	if :: fenceEpoch > top -> top = fenceEpoch; topAward = c + 1 :: else fi;
	allVisible(fenceEpoch);
	list[g] = 0;
	unlock(g);
	grant[g] = GRANTED
}

inline ask(g) {
	grant[g] = ASKED;
#ifdef M_READS_BEFORE_LOCK
	readRegistry(g);
#endif
#ifdef M_CACHED_BACKENDS
	for (i : 0 .. PIDS - 1) { cachedStart[(g) * PIDS + i] = (live[i] -> start[i] : 0) };
#endif
	skip
}

/* Attempt k of candidacy c. */
proctype Grant(byte g; byte c; byte k) {
	do
	/* The proxy asks when it has the award, and again with the same award if that failed ... */
	:: d_step { grant[g] == UNUSED && k == 0 && awards > c && !stopped[proxyOf(c)] -> ask(g) }
	:: d_step { grant[g] == UNUSED && k > 0 && attempt[c] == k - 1 && !stopped[proxyOf(c)] &&
		(grant[g - (k > 0)] == FAILED || grant[g - (k > 0)] == LOST) -> attempt[c] = k; ask(g) }
	/* ... or was not answered. Then the earlier attempt goes on at the server. */
	:: d_step { grant[g] == UNUSED && k > 0 && attempt[c] == k - 1 && !stopped[proxyOf(c)] && losses > 0 &&
		(running(g - (k > 0)) || grant[g - (k > 0)] == GRANTED) -> losses--; attempt[c] = k; ask(g) }

	/* [C1] First the lock. Then the award is judged. */
	:: d_step { grant[g] == ASKED && exclusive == 0 && shared == 0 ->
		exclusive = g + 1;
		if
		:: c + 1 > fenceAward ->
			grant[g] = LOCKED;
#ifdef M_RECORDS_FIRST
			record(c, fenceEpoch + 1)
#endif
		:: c + 1 == fenceAward ->      /* [C13] a repeat keeps the epoch, and ends nobody */
#ifdef M_REPEAT_ENDS
			for (i : 0 .. ENTRIES - 1) { must(a_repeat_ends_nobody, !(rows & bit(i) && !gone(i))) }
#endif
			succeed(g, c)
		:: else -> unlock(g); list[g] = 0; grant[g] = OUTDATED
		fi
	   }

	/* [C1] The registry is read behind the lock, in a statement of its own. */
	:: d_step { grant[g] == LOCKED ->
#ifndef M_READS_BEFORE_LOCK
		readRegistry(g);
#endif
		grant[g] = LISTED
	   }

	/* [C10] Before its first signal the grant tests that it may end all of them.
	   [C9] Look-up and signal are one step. A signal takes effect at any time later. */
#ifdef M_LOOKS_UP_BEFORE
	:: d_step { waiting(g) && aim[g] == 0 && some(toSignal, g) ->
		for (i : 0 .. ENTRIES - 1) {
			if :: toSignal(g, i) -> aim[g] = aim[g] | bit(entryPid[i]) :: else fi
		};
		skip
	   }
	:: d_step { waiting(g) && aim[g] ->
		for (j : 0 .. PIDS - 1) {
			if
			:: aim[g] & bit(j) && live[j] ->
				must(nobody_else_is_ended, signals(g, j, 0) || signals(g, j, 1) || signals(g, j, ENTRIES - 1));
				terminated[j] = true
			:: else
			fi
		};
		aim[g] = 0;
		grant[g] = SIGNALLED
	   }
#else
	:: d_step { waiting(g) && some(toSignal, g) ->
		sent = 0;
		if
#ifndef M_SIGNALS_UNTESTED
		:: some(cannotEnd, g) -> rollBack(g)
#endif
		:: else ->
			for (j : 0 .. ENTRIES - 1) {
				if
				:: waiting(g) && cannotEnd(g, j) ->
					must(a_doomed_grant_ends_nobody, sent == 0);
					rollBack(g)
				:: waiting(g) && toSignal(g, j) && !cannotEnd(g, j) ->
					must(nobody_else_is_ended, !gone(j));
					terminated[entryPid[j]] = true;
					sent++
				:: else
				fi
			};
			if :: waiting(g) -> grant[g] = SIGNALLED :: else fi
		fi
	   }
#endif

	/* [C2] It waits until each of them is gone. [C12] Drain, record and commit. */
#ifdef M_DOES_NOT_WAIT
	:: d_step { grant[g] == SIGNALLED || (grant[g] == LISTED && !some(stays, g)) ->
#else
	:: d_step { waiting(g) && !some(stays, g) ->
#endif
		rows = rows & ~list[g];
#ifndef M_RECORDS_FIRST
		record(c, fenceEpoch + 1);
#endif
		succeed(g, c)
	   }

	/* [C2] If that takes too long, it rolls back. */
	:: d_step { grant[g] == SIGNALLED && timeouts > 0 && k < ATTEMPTS - 1 && some(stays, g) ->
		timeouts--;
#ifdef M_TIMEOUT_COMMITS
		record(c, fenceEpoch + 1);
		succeed(g, c)
#else
		rollBack(g)
#endif
	   }

	/* The grant returns. */
	:: d_step { grant[g] == GRANTED && attempt[c] == k && !stopped[proxyOf(c)] ->
		if :: epochGiven[c] > holds[workerOf(c)] -> holds[workerOf(c)] = epochGiven[c] :: else fi;
		grant[g] = RETURNED
	   }
	od
}

/* ---- The registration: one statement, which commits by itself ------------------------------------ */

#ifdef M_SNAPSHOT_BEFORE_LOCK
byte snapshot[ENTRIES];
#define seen(n) snapshot[n]
#else
#define seen(n) fenceEpoch      /* [C3] what is in force once the lock is held */
#endif

proctype Registration(byte n) {
	do
#ifdef M_SNAPSHOT_BEFORE_LOCK
	:: d_step { statement[n] == SENT -> snapshot[n] = fenceEpoch; statement[n] = STARTED }
	:: d_step { statement[n] == STARTED && exclusive == 0 -> shared++; statement[n] = HASLOCK }
#else
	:: d_step { statement[n] == SENT && exclusive == 0 -> shared++; statement[n] = HASLOCK }
#endif
	/* [C4] The rest needs nothing of the proxy. */
#ifdef M_THREE_STATEMENTS
	:: d_step { statement[n] == HASLOCK && !stopped[proxyOf(entrySession[n])] ->
#else
	:: d_step { statement[n] == HASLOCK ->
#endif
#ifdef M_LOOKS_UP_START
		entryStart[n] = start[entryPid[n]];
#endif
		for (i : 0 .. SESSIONS - 1) {
			if
			:: server[i] == entryPid[n] + 1 && since[i] == entryStart[n] -> must(no_stranger_is_registered, i == entrySession[n])
			:: else
			fi
		};
		if
#ifdef M_INSERTS_UNLOCKED
		:: entryEpoch[n] == seen(n) && !gone(n) -> statement[n] = COMPARED
#else
		:: entryEpoch[n] == seen(n) && !gone(n) -> rows = rows | bit(n); statement[n] = COMMITTED
#endif
		:: else -> statement[n] = REFUSED
		fi;
		shared--
	   }
#ifdef M_INSERTS_UNLOCKED
	:: d_step { statement[n] == COMPARED -> rows = rows | bit(n); statement[n] = COMMITTED }
#endif
	od
}

/* Deletes of entries arrive late, or never. */
proctype Deletes() {
	do
	:: d_step { deletes ->
		i = 0;
		do :: !(deletes & bit(i)) -> i++ :: else -> break od;
		deletes = deletes & ~bit(i);
#ifdef M_DELETES_BY_BACKEND
		for (j : 0 .. ENTRIES - 1) {
			if :: entryPid[j] == entryPid[i] && entryStart[j] == entryStart[i] -> rows = rows & ~bit(j) :: else fi
		}
#else
		rows = rows & ~bit(i)       /* [C8] by its number */
#endif
	   }
	od
}

/* ---- A backend: all that ever have this pid, one after the other ------------------------------------ */

inline end(b) {
	live[b] = false; terminated[b] = false; hangup[b] = false; superuser[b] = false;
	readOnly[b] = false; box[b] = 0; state[b] = IDLE; began[b] = 0
}

proctype Backend(byte b) {
	do
	/* It reads a message. While the session is read-only, Postgres itself refuses a write. */
	:: d_step { box[b] && (state[b] == IDLE || state[b] == INBLOCK) ->
		if
		:: kindOf(box[b]) == BEGIN -> state[b] = INBLOCK; began[b] = epochOf(box[b])
		:: kindOf(box[b]) != BEGIN && readOnly[b] -> state[b] = IDLE; began[b] = 0
		:: kindOf(box[b]) == WRITE && !readOnly[b] -> state[b] = RUNNING; began[b] = epochOf(box[b])
		:: kindOf(box[b]) == COMMIT && !readOnly[b] ->
			must(G3_begun_under_the_epoch, began[b] == epochOf(box[b]));
			state[b] = RUNNING
		fi;
		box[b] = 0
	   }
	/* The commit is on disk; then it is visible, and answered. */
	:: d_step { state[b] == RUNNING -> mayCommit(began[b]); state[b] = COMMITTING }
	:: d_step { state[b] == COMMITTING -> state[b] = IDLE }
#ifdef M_PREPARES
	/* [C15] What is prepared outlives its backend. */
	:: d_step { state[b] == RUNNING && prepared == 0 -> prepared = 1 + began[b]; state[b] = IDLE }
	:: d_step { prepared -> mayCommit(prepared - 1); prepared = 0 }
#endif
	/* A signal takes effect late, between two steps, and never between the commit and its visibility. */
	:: d_step { terminated[b] && state[b] != COMMITTING && state[b] != EXITING -> box[b] = 0; state[b] = EXITING }
	:: d_step { terminated[b] && swallowed > 0 && state[b] != EXITING -> swallowed--; terminated[b] = false }
	/* The end of its client's input stands behind what was sent. */
	:: d_step { hangup[b] && box[b] == 0 && (state[b] == IDLE || state[b] == INBLOCK) -> state[b] = EXITING }
	/* The exit drops temporary tables in a transaction of its own. Then the backend is gone. */
	:: d_step { state[b] == EXITING ->
		must(G1_nothing_commits_late, began[b] == 0 || readOnly[b] || began[b] >= top);
		end(b)
	   }
	od
}

/* ---- A session: its client, and what the proxy does for it ------------------------------------------ */

/* Nothing is left of the connection, at the proxy or at the client. */
inline forget(s) {
	server[s] = 0; since[s] = 0; told[s] = 0; asking[s] = 0; registered[s] = 0; number[s] = 0;
	input[s] = 0; inBlock[s] = false
}

inline register(s, epoch) {
	i = entries;
	entries++;
	entryPid[i] = pidOf(s); entryStart[i] = since[s]; entrySession[i] = s; entryEpoch[i] = epoch;
	statement[i] = SENT;
	asking[s] = i + 1
}

inline becomeRelay(s, n) {
	registered[s] = entryEpoch[n]; number[s] = n; asking[s] = 0; readOnly[pidOf(s)] = false
}

#if defined(M_ANNOUNCES_OVER_INPUT)
#define mayAnnounce(s) (registered[s] == 0)
#elif defined(M_ANNOUNCES_WHILE_REGISTERED)
#define mayAnnounce(s) (input[s] == 0)
#else
#define mayAnnounce(s) (input[s] == 0 && registered[s] == 0)
#endif

#if defined(M_REGISTERS_UNANNOUNCED) || defined(M_REGISTERS_SUPERSEDED)
#define mayRegister(s) (told[s] && atRest(s))
#elif defined(M_REGISTERS_IN_BLOCK)
#define mayRegister(s) (told[s] && told[s] == held(s) && box[pidOf(s)] == 0)
#else
#define mayRegister(s) (told[s] && told[s] == held(s) && atRest(s))
#endif

#ifdef M_LETS_GO_BUSY
#define mayLetGo(s) true
#else
#define mayLetGo(s) atRest(s)
#endif

proctype Session(byte s) {
	byte free;
	do
	/* It connects, with any pid that is free. [C17] Nothing else passes until the session is read-only. */
	:: atomic { server[s] == 0 && connects[s] < CONNECTS && !stopped[proxyOf(s)] && (!live[0] || !live[1] || !live[PIDS - 1]) ->
		if
		:: !live[0] -> free = 0
		:: !live[1] -> free = 1
#if PIDS > 2
		:: !live[2] -> free = 2
#endif
		fi;
		connects[s]++;
		live[free] = true; start[free]++;
		server[s] = free + 1; since[s] = start[free];
#ifndef M_FORWARDS_BEFORE_READ_ONLY
		readOnly[free] = (registered[s] == 0);   /* it is registered here only under M_KEEPS_REGISTRATION [C14] */
#endif
		free = 0
	   }
#ifdef M_FORWARDS_BEFORE_READ_ONLY
	:: d_step { server[s] && here(s) && !readOnly[pidOf(s)] && registered[s] == 0 -> readOnly[pidOf(s)] = true }
#endif

	/* The client sends something, under the epoch that it was told last. */
	:: d_step { server[s] && input[s] == 0 && !inBlock[s] && writes[s] < WRITES && (told[s] || EARLY) ->
		writes[s]++; input[s] = message(WRITE, told[s]) }
	:: d_step { BLOCKS && server[s] && input[s] == 0 && !inBlock[s] && writes[s] < WRITES && (told[s] || EARLY) ->
		writes[s]++; inBlock[s] = true; input[s] = message(BEGIN, told[s]) }
	:: d_step { BLOCKS && server[s] && input[s] == 0 && inBlock[s] ->
		inBlock[s] = false; input[s] = message(COMMIT, told[s]) }

	/* [C16] An epoch is announced while no input is pending, and never to a registered session. */
	:: d_step { mayAnnounce(s) && connected(s) && held(s) != told[s] && asking[s] == 0 -> told[s] = held(s) }

	/* [C16] It registers at rest, under the epoch that was announced and that the candidacy holds. */
	:: d_step { linked(s) && asking[s] == 0 && registered[s] == 0 && entries < ENTRIES &&
		mayRegister(s) ->
#ifdef M_REGISTERS_UNANNOUNCED
		register(s, held(s));
#else
		register(s, told[s]);
#endif
#ifdef M_FORWARDS_UNCONFIRMED
		becomeRelay(s, i)
#endif
	   }
	/* [C5] Only a confirmed registration counts. */
	:: d_step { linked(s) && asking[s] && statement[asking[s] - 1] == COMMITTED ->
		becomeRelay(s, asking[s] - 1)
	   }
	:: d_step { connected(s) && asking[s] && statement[asking[s] - 1] == REFUSED ->
		if :: here(s) -> hangup[pidOf(s)] = true :: else fi;
		forget(s)
	   }
	/* No answer comes: it is perhaps there. Its number is deleted, and another one is asked for. */
	:: d_step { linked(s) && asking[s] && losses > 0 ->
		losses--;
#ifdef M_SILENCE_IS_YES
		becomeRelay(s, asking[s] - 1)
#else
		deletes = deletes | bit(asking[s] - 1);
		asking[s] = 0
#endif
	   }

	/* A registered session forwards what its client sends ... */
	:: d_step { linked(s) && input[s] && box[pidOf(s)] == 0 && registered[s] ->
		must(G3_written_under_the_epoch_told, epochOf(input[s]) == registered[s] && told[s] == registered[s]);
		box[pidOf(s)] = input[s]; input[s] = 0
	   }
	/* ... and so does one that is read-only at the server, one exchange at a time. */
	:: d_step { EARLY && linked(s) && input[s] && registered[s] == 0 && asking[s] == 0 &&
		box[pidOf(s)] == 0 && (state[pidOf(s)] == IDLE || state[pidOf(s)] == INBLOCK) ->
		box[pidOf(s)] = input[s]; input[s] = 0
	   }

	/* [C7] It is let go at rest, by the number of its entry, and is read-only from then on. */
	:: d_step { LETGO && linked(s) && registered[s] && mayLetGo(s) ->
		deletes = deletes | bit(number[s]); registered[s] = 0; number[s] = 0;
		if :: atRest(s) -> began[pidOf(s)] = 0 :: else fi;   /* what its exit drops later is not modelled */
#ifndef M_LETS_GO_WRITABLE
		readOnly[pidOf(s)] = true
#endif
	   }

	/* It ends: the client goes, or the proxy ends it. [C6] Its entry stays. */
	:: d_step { linked(s) ->
#ifdef M_END_DELETES
		if :: registered[s] -> deletes = deletes | bit(number[s]) :: else fi;
#endif
		hangup[pidOf(s)] = true;
		forget(s)
	   }
	/* Its backend is gone. [C14] What comes after it starts unregistered. */
	:: d_step { connected(s) && !here(s) ->
#ifdef M_KEEPS_REGISTRATION
		server[s] = 0; since[s] = 0; asking[s] = 0
#else
		forget(s)
#endif
	   }
	od
}

/* ---- Sweep, comparison, lease service, faults --------------------------------------------------------- */

/* [C11] A sweep reads the rows first and the backends second, and deletes by number. */
#if SWEEPS
byte sweeps = SWEEPS, swept;
bool sweeping;
#ifdef M_SWEEPS_BACKENDS_FIRST
byte sweptStart[PIDS];
#endif
proctype Sweep() {
	do
	:: d_step { sweeps > 0 && !sweeping -> sweeps--; sweeping = true;
#ifdef M_SWEEPS_BACKENDS_FIRST
		for (i : 0 .. PIDS - 1) { sweptStart[i] = (live[i] -> start[i] : 0) }
#else
		swept = rows
#endif
	   }
	:: d_step { sweeping ->
		for (i : 0 .. ENTRIES - 1) {
#ifdef M_SWEEPS_BACKENDS_FIRST
			if :: sweptStart[entryPid[i]] != entryStart[i] -> rows = rows & ~bit(i) :: else fi
#else
			if :: swept & bit(i) && gone(i) -> rows = rows & ~bit(i) :: else fi
#endif
		};
		swept = 0; sweeping = false
	   }
	od
}
#endif

/* [C18] A proxy compares its registered sessions with the registry: sessions first, rows second; and it ends
   a session without an entry only if that is still registered under the same number. */
#if COMPARES
byte compares = COMPARES, compared;
byte comparing;
inline readSessions() {
	for (i : 0 .. SESSIONS - 1) {
		if :: registered[i] -> compared = compared | bit(number[i]) :: else fi
	};
	skip
}
proctype Compare() {
	do
	:: d_step { compares > 0 && comparing == 0 -> compares--; comparing = 1;
#ifdef M_COMPARES_ROWS_FIRST
		compared = ~rows
#else
		readSessions()
#endif
	   }
	:: d_step { comparing == 1 -> comparing = 2;
#ifndef M_COMPARES_ROWS_FIRST
		compared = compared & ~rows
#endif
	   }
	:: d_step { comparing == 2 -> comparing = 0;
		for (i : 0 .. SESSIONS - 1) {
			/* Nothing takes rows away here, so whoever lacks one has no backend either. */
			must(only_lost_entries_are_missed, !(registered[i] && compared & bit(number[i]) && here(i)))
		};
		compared = 0
	   }
	od
}
#endif

proctype LeaseService() {
	do :: d_step { awards < CANDIDACIES -> awards++ } od
}

inline crashProxy(p) {
	for (i : 0 .. SESSIONS - 1) {
		if
		:: proxyOf(i) == p && server[i] ->
			if :: here(i) -> hangup[pidOf(i)] = true :: else fi;
			forget(i)
		:: else
		fi
	};
	skip
}

proctype Faults() {
	do
	/* Postgres crashes: the registry is empty, backends and statements are gone, the disk stays. */
	:: d_step { crashes > 0 ->
		crashes--;
		for (i : 0 .. PIDS - 1) { end(i) };
		rows = 0; exclusive = 0; shared = 0; deletes = 0;
		fenceEpoch = diskEpoch; fenceAward = diskAward;
		for (i : 0 .. ENTRIES - 1) {
			if :: statement[i] != UNUSED -> statement[i] = ABORTED :: else fi
		};
		for (i : 0 .. GRANTS - 1) {
			if :: running(i) || grant[i] == GRANTED -> grant[i] = LOST; list[i] = 0 :: else fi
		}
	   }
	:: d_step { kills > 0 && live[0] -> kills--; terminated[0] = true }
	:: d_step { kills > 0 && live[1] -> kills--; terminated[1] = true }
	:: d_step { superusers > 0 && live[0] -> superusers--; superuser[0] = true }
	:: d_step { superusers > 0 && live[1] -> superusers--; superuser[1] = true }
	/* A proxy freezes for ever, or crashes and its connections are closed. */
	:: d_step { stops > 0 && !stopped[0] -> stops--; stopped[0] = true }
	:: d_step { stops > 0 && !stopped[1] -> stops--; stopped[1] = true }
	:: d_step { stops > 0 && !stopped[0] -> stops--; stopped[0] = true; crashProxy(0) }
	:: d_step { stops > 0 && !stopped[1] -> stops--; stopped[1] = true; crashProxy(1) }
	od
}

/* Nothing can happen any more: every grant whose proxy lives has returned, or was refused for a later award. */
#define settledGrant(g) (grant[g] == RETURNED || grant[g] == OUTDATED)
#define excused(g)      (grant[g] == LOST || (SUPERUSERS && grant[g] == FAILED))
proctype Judge() {
	timeout ->
	d_step {
		for (i : 0 .. CANDIDACIES - 1) {
			must(every_grant_returns, stopped[proxyOf(i)] || settledGrant(i * ATTEMPTS + attempt[i]) ||
				(attempt[i] == ATTEMPTS - 1 && excused(i * ATTEMPTS + attempt[i])))
		}
	}
}

init {
	atomic {
		byte c, k;
		for (c : 0 .. CANDIDACIES - 1) {
			for (k : 0 .. ATTEMPTS - 1) { run Grant(c * ATTEMPTS + k, c, k) }
		};
		for (c : 0 .. ENTRIES - 1) { run Registration(c) };
		for (c : 0 .. PIDS - 1) { run Backend(c) };
		for (c : 0 .. SESSIONS - 1) { run Session(c) };
		run Deletes();
#if SWEEPS
		run Sweep();
#endif
#if COMPARES
		run Compare();
#endif
		run LeaseService();
		run Faults();
		run Judge();
		c = 0; k = 0
	}
}
