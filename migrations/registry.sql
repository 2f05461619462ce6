-- The registry: the backends that may write, for as long as they live.
--
-- The table is unlogged. A registration is void when its backend ends, and all backends end in a crash, so
-- it is correct that a crash empties the table.
CREATE UNLOGGED TABLE fencepost.running (
    pid           integer NOT NULL,
    backend_start timestamptz NOT NULL,
    fence         integer NOT NULL,
    epoch         bigint NOT NULL,
    noted_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    claimed       boolean NOT NULL DEFAULT false, -- by fencepost.claim
    note          bigint NOT NULL DEFAULT 0, -- chosen by the caller, so that a late deletion removes no other registration
    PRIMARY KEY (fence, pid, note)
);
COMMENT ON TABLE fencepost.running IS 'the registry: the backends that may write; a grant ends them';

-- holds is the predicate: the epoch of the row, the one announced to the connection, and the one that its candidacy holds
-- are one, and the row's is the candidacy's own. NULL counts as false.
CREATE OR REPLACE FUNCTION fencepost.holds(rec fencepost.fence, told bigint, held bigint, incarnation text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce((rec).epoch OPERATOR(pg_catalog.=) told AND told OPERATOR(pg_catalog.=) held AND held OPERATOR(pg_catalog.>) 0
    AND (rec).incarnation OPERATOR(pg_catalog.=) incarnation, false);

-- granted returns the highest epoch that the ledger has of an incarnation whose connection knows of the epoch
-- known, 0 for none. It returns NULL if there is none, or if that epoch is no reason to refuse the connection
-- for good: while a token is in force and nobody leads, because the resource is paused or its epoch was
-- raised, a connection that brings this token and knows of no epoch leads again with the next grant. All that
-- bring one token share an incarnation, so the ledger does not tell who of them led before.
CREATE OR REPLACE FUNCTION fencepost.granted(rec fencepost.fence, incarnation text, known bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    epoch bigint;
BEGIN
    IF known = 0 AND rec.incarnation IS NULL AND rec.source = 'token'
        AND incarnation = format('token:%s:%s', rec.source_generation, rec.source_index) THEN
        RETURN NULL;
    END IF;
    SELECT max(g.epoch) INTO epoch FROM fencepost.grants g WHERE g.id = rec.id AND g.incarnation = incarnation;
    RETURN epoch;
END $$;

-- superseded_hint is the hint of ZF001. An operator gave an epoch that nobody holds.
CREATE OR REPLACE FUNCTION fencepost.superseded_hint(rec fencepost.fence) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN rec.worker IS NULL AND rec.source IS NOT NULL THEN 'An operator ended the lead of this worker.' ELSE 'Another worker leads.' END
        || ' Stop what this worker was doing. Connect again only to start over from the current state of the database.';
END $$;

-- refuse says why a backend may not be registered: it raises the error, always. The caller shares the row.
--
-- told is the epoch announced to the connection, and held the one that its candidacy was granted, 0 for none. A worker's
-- name that begins with a quotation mark is JSON already, because not every database can represent every character.
--
-- A superseded candidacy gets ZF001 even if its connection claims the current epoch, and even if the token of
-- the candidacy was granted an epoch again since then.
CREATE OR REPLACE FUNCTION fencepost.refuse(fence integer, told bigint, worker text, incarnation text, held bigint)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec   fencepost.fence%ROWTYPE;
    cur   bigint;
    mine  bigint; -- the epoch this candidacy has or had, or this connection believes in
    shown text; -- the worker's name, as JSON
    own   bigint; -- the same as mine, but for the current epoch that a connection only claims
    state text;
    what  text;
    who   text;
    hint  text;
    stop  text; -- the order of an operator because of which the worker does not lead
BEGIN
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence;
    cur := coalesce(rec.epoch, 0);
    told := coalesce(told, 0);
    mine := fencepost.granted(rec, incarnation, greatest(told, held));
    shown := CASE WHEN worker LIKE '"%' THEN worker ELSE fencepost.quoted(worker) END;
    who := CASE WHEN worker IS NULL THEN 'this worker' ELSE 'worker ' || shown END;
    own := greatest(held, CASE WHEN held > 0 AND held < cur AND mine = cur THEN NULL ELSE mine END, CASE WHEN told <> cur THEN told END, 0);
    mine := greatest(told, held, mine, 0);

    IF rec.id IS NULL THEN
        PERFORM fencepost.lost(fence);
    ELSIF told > cur OR held > cur THEN
        state := 'ZF004';
        what := format('%s was granted epoch %s on resource %s, but the fence only knows epoch %s: the database was restored from an older state',
            who, mine, fencepost.quoted(rec.resource), cur);
        hint := fencepost.restored_hint(mine);
    ELSIF held = cur AND cur > 0 THEN -- nobody was granted since
        IF told < cur THEN
            state := 'ZF003';
            what := format('%s has become leader of resource %s with epoch %s since this connection last knew',
                who, fencepost.quoted(rec.resource), cur);
            hint := 'Start over from your first read: what was read before may be old. This connection now knows its epoch, and may write.';
        ELSE
            state := 'ZF004';
            what := format('epoch %s of resource %s was granted to another candidacy of %s: the database was restored from an older state',
                cur, fencepost.quoted(rec.resource), fencepost.holder(rec.worker));
            hint := 'Connect again: the next grant puts it right.';
        END IF;
    ELSIF own > 0 AND own < cur THEN
        state := 'ZF001';
        what := format('%s was superseded on resource %s: its epoch is %s, and the current epoch %s is held by %s',
            who, fencepost.quoted(rec.resource), own, cur, fencepost.holder(rec.worker));
        hint := fencepost.superseded_hint(rec);
    ELSE
        state := 'ZF002';
        SELECT b.what, b.hint INTO stop, hint FROM fencepost.barred(fence, shown) b;
        what := format('%s does not lead resource %s: %s', who, fencepost.quoted(rec.resource),
            CASE WHEN stop IS NOT NULL THEN stop
                 WHEN cur = 0 THEN 'no epoch was granted yet'
                 WHEN rec.incarnation = incarnation THEN format('its lease and epoch %s are not confirmed yet', cur)
                 ELSE format('the current epoch %s is held by %s', cur, fencepost.holder(rec.worker)) END);
        hint := coalesce(hint, CASE WHEN rec.incarnation = incarnation THEN 'Retry the transaction.' END,
            'Wait until this worker leads (SHOW fencepost.role), or connect with fencepost.campaign=wait.');
    END IF;

    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = what, HINT = hint,
        DETAIL = format('{"resource":%s,"worker":%s,"incarnation":%s,"epoch":%s,"current_epoch":%s,"current_worker":%s}',
            fencepost.quoted(rec.resource), shown, fencepost.quoted(incarnation),
            CASE state WHEN 'ZF003' THEN cur WHEN 'ZF001' THEN own ELSE mine END, cur, fencepost.quoted(rec.worker));
END $$;

-- enter records that a backend may write, for as long as it lives, under the predicate above. Because of
-- the row's lock, either a grant sees the registration, or the registration sees the grant.
--
-- A process id names a backend of one server, and is used again. So enter is told when the session's server was
-- started, and what the time was when the session had its backend: started and seen are in the form of timestamptz_send, in
-- hexadecimal digits. A backend that was started later has the process id of one that has ended. After a failover, a session
-- and the control connection may be at two servers.
CREATE OR REPLACE FUNCTION fencepost.enter(fence integer, pid integer, started text, seen text, note bigint, worker text, incarnation text, told bigint, held bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec   fencepost.fence%ROWTYPE := fencepost.share(fence);
    since timestamptz;
BEGIN
    IF encode(timestamptz_send(pg_postmaster_start_time()), 'hex') <> started THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004', MESSAGE = 'this connection leads to another server than Fencepost''s control connection',
            HINT = 'Their address leads to two servers, as it may in a failover. Connect again when one of them is stopped. If that does not help, restart this Fencepost.';
    END IF;
    IF NOT fencepost.holds(rec, told, held, incarnation) THEN
        PERFORM fencepost.refuse(fence, told, worker, incarnation, held);
        RETURN; -- never: refuse has raised an error
    END IF;
    SELECT a.backend_start INTO since FROM pg_stat_get_activity(pid) a
        WHERE a.datid = (SELECT fencepost.here()) AND timestamptz_send(a.backend_start) <= decode(seen, 'hex');
    IF since IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004', MESSAGE = format('backend %s of this session cannot be seen in this database', pid),
            HINT = 'If the session has not ended, the control role needs pg_read_all_stats.';
    END IF;
    INSERT INTO fencepost.running (pid, note, backend_start, fence, epoch) VALUES (pid, note, since, fence, held);
END $$;

-- registered returns the epoch under which the session's own backend is registered, or NULL. It takes no lock: a
-- grant ends whoever is registered, and a lock would wait for the grant that waits for this session. Only who has
-- claimed past the proxy may prepare a transaction for two-phase commit, which outlives its backend. Such a
-- transaction shares the row, so that a grant waits for it and names it.
CREATE OR REPLACE FUNCTION fencepost.registered(fence integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    mine record;
BEGIN
    SELECT max(r.epoch) AS epoch, bool_or(r.claimed) AS claimed INTO mine FROM fencepost.running r WHERE r.fence = fence AND r.pid = pg_backend_pid()
        AND r.backend_start = (SELECT a.backend_start FROM pg_stat_get_activity(pg_backend_pid()) a);
    IF mine.claimed THEN
        IF (fencepost.pass(fence)).epoch IS DISTINCT FROM mine.epoch THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN mine.epoch;
END $$;

-- leave deletes that registration and no other.
CREATE OR REPLACE FUNCTION fencepost.leave(fence integer, pid integer, note bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    DELETE FROM fencepost.running r WHERE r.fence = fence AND r.pid = pid AND r.note = note;
END $$;

-- drain returns when no registered backend of a fence is left, and deletes their registrations. The caller has
-- locked the row, so none can be added. drain says by an INFO that it has begun, with the epoch that ends, so that
-- the proxies end the sessions that are at rest, and by another one which backends it ends itself; an INFO reaches the client at once,
-- whatever its settings are. A backend that is idle 250 ms later is ended, or as long later as the control role's setting
-- fencepost.drain_idle says, and one that works has until grace after since. Then they have patience to disappear. One that sends
-- an error which its client does not read ends only when its connection is closed: its proxy is notified to do that.
--
-- As long as there is a backend that the control role may not end, drain ends none: an attempt that fails in the end
-- would cost the leader its sessions, and each further attempt would again.
--
-- A restored dump contains the registrations of the original database, whose backends may still run on the same
-- server. So a backend of another database is not the registered one.
--
-- If the rows of table fence were deleted by hand, a resource gets another row with another number. So drain ends those
-- that are registered under a number without a row, too.
CREATE OR REPLACE FUNCTION fencepost.drain(fence integer, since timestamptz, grace interval, patience interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    here  oid := fencepost.here();
    fences integer[] := fence || coalesce((SELECT array_agg(DISTINCT r.fence) FROM fencepost.running r
        WHERE NOT EXISTS (SELECT FROM fencepost.fence f WHERE f.id = r.fence)), '{}');
    super boolean := has_table_privilege('pg_authid'::regclass, 'UPDATE'); -- which no right gives to others, see polls.go
    signals boolean := pg_has_role('pg_signal_backend', 'USAGE');
    began timestamptz; -- when the proxies were told
    idle  interval := coalesce(nullif(current_setting('fencepost.drain_idle', true), ''), '250 ms')::interval;
    ended integer[] := '{}';
    note  record;
    fault text;
    sends text; -- why one is there still after it was ended, if that is known
BEGIN
    LOOP
        PERFORM pg_stat_clear_snapshot(); -- what pg_stat_get_activity returns is cached per transaction
        DELETE FROM fencepost.running r WHERE r.fence = ANY (fences) AND NOT EXISTS (
            SELECT FROM pg_stat_get_activity(NULL) a WHERE a.pid = r.pid AND a.datid = here AND coalesce(a.backend_start = r.backend_start, true));
        -- One that cannot be ended comes first.
        SELECT r.pid, pg_get_userbyid(a.usesysid)::text AS usename, a.application_name, a.backend_start IS NULL AS hidden,
                coalesce(has_table_privilege(a.usesysid, 'pg_authid'::regclass, 'UPDATE'), false) AND NOT super AS above,
                NOT signals AND coalesce(NOT pg_has_role(a.usesysid, 'USAGE'), true) AS strange INTO note
            FROM fencepost.running r JOIN pg_stat_get_activity(NULL) a ON a.pid = r.pid AND a.datid = here
            WHERE r.fence = ANY (fences) ORDER BY hidden DESC, above DESC, strange DESC, r.pid LIMIT 1;
        EXIT WHEN NOT FOUND;
        fault := CASE WHEN note.hidden THEN 'whether it is still there cannot be seen: the control role lacks pg_read_all_stats'
            WHEN note.above THEN 'the control role may not end it, because the role is a superuser'
            WHEN note.strange THEN 'the control role may not end it: it lacks pg_signal_backend' END;
        IF began IS NULL AND fault IS NULL THEN
            began := clock_timestamp();
            RAISE INFO USING MESSAGE = 'fencepost waits for registered backends',
                DETAIL = coalesce((SELECT max(r.epoch) FROM fencepost.running r WHERE r.fence = fence), 0)::text; -- the last may be gone by now
        END IF;
        IF fault IS NULL THEN
            BEGIN
                -- The lookup and the signal are one statement, because a process id may be reused at any time.
                FOR note IN
                    SELECT a.pid, pg_get_userbyid(a.usesysid)::text AS usename, a.application_name, a.state, pg_terminate_backend(a.pid),
                        a.wait_event = 'ClientWrite' AS sends, a.client_addr, a.client_port
                    FROM fencepost.running r JOIN pg_stat_get_activity(NULL) a ON a.pid = r.pid AND a.datid = here AND a.backend_start = r.backend_start
                    WHERE r.fence = ANY (fences) AND (clock_timestamp() > since + grace OR a.state = 'idle' AND clock_timestamp() > began + idle)
                LOOP
                    sends := CASE WHEN note.sends THEN format(', because it sends something that its client (%s) does not read',
                        coalesce(host(note.client_addr) || ' port ' || note.client_port, 'on a Unix socket')) END;
                    CONTINUE WHEN note.pid = ANY (ended);
                    ended := ended || note.pid;
                    RAISE INFO USING MESSAGE = 'fencepost has terminated a registered backend', DETAIL = format('{"pid":%s,"user":%s,"application":%s,"state":%s}',
                        note.pid, fencepost.quoted(note.usename), fencepost.quoted(note.application_name), fencepost.quoted(note.state));
                END LOOP;
            EXCEPTION WHEN insufficient_privilege THEN
                fault := 'the control role may not end it';
            END;
        END IF;
        IF clock_timestamp() > since + grace + patience OR fault IS NOT NULL AND clock_timestamp() > since + grace THEN
            RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('backend %s of role %s (application %s) is in the way of a grant: %s',
                note.pid, fencepost.quoted(note.usename), fencepost.quoted(note.application_name),
                coalesce(fault, format('it is still there %s after it was ended%s', patience, sends)));
        END IF;
        PERFORM pg_sleep(CASE WHEN clock_timestamp() > began + interval '100 milliseconds' THEN 0.01 ELSE 0.002 END);
    END LOOP;
END $$;

-- sweep deletes the registrations of backends that are gone: those of sessions that have ended, and those that a proxy which has
-- died leaves behind. A backend that cannot be seen may be there. sweep skips rows that another sweep deletes.
--
-- The rows are those that were committed before the statement began, and the backends are read by it, so a backend
-- of which a row is seen is seen too, if it is there.
CREATE OR REPLACE FUNCTION fencepost.sweep() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here oid := fencepost.here();
BEGIN
    PERFORM pg_stat_clear_snapshot(); -- what pg_stat_get_activity returns is cached per transaction
    DELETE FROM fencepost.running r WHERE (r.fence, r.pid, r.note) IN (
        SELECT old.fence, old.pid, old.note FROM fencepost.running old
        WHERE NOT EXISTS (SELECT FROM pg_stat_get_activity(NULL) a
            WHERE a.pid = old.pid AND a.datid = here AND coalesce(a.backend_start = old.backend_start, true))
        FOR UPDATE SKIP LOCKED);
END $$;
