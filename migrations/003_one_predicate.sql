-- One predicate for "this transaction may write", shared by the check, the registry and refuse;
-- registrations with an id of their own; and worker roles, for databases in which not everybody may
-- read the fence's sequences.

-- current is the part of the predicate that needs no snapshot: the sequence's value is the epoch
-- announced to the connection, and the one that its candidacy holds. The check calls it at the
-- start of every transaction. It is written so that Postgres inlines it: it is SQL, parsed at
-- creation (so no session's search_path changes it), has no SET clause, and uses last, which comes
-- from a volatile function, only once. NULL, as from a sequence that was never set, counts as
-- false.
CREATE FUNCTION fencepost.current(last bigint, told bigint, held bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN last OPERATOR(pg_catalog.=) told AND told OPERATOR(pg_catalog.=) held;

-- holds is the whole predicate: the row has that epoch too, and it is the candidacy's own. A grant
-- changes sequence and row together, so the two parts differ only in a restored database and under
-- a snapshot older than the grant.
CREATE FUNCTION fencepost.holds(rec fencepost.fence, last bigint, told bigint, held bigint, incarnation text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(fencepost.current(last, told, held) AND last OPERATOR(pg_catalog.>) 0
    AND (rec).epoch OPERATOR(pg_catalog.=) last AND (rec).incarnation OPERATOR(pg_catalog.=) incarnation, false);

-- refuse changes in three ways. It uses the predicate. A superseded candidacy gets ZF001 even if
-- its connection claims the current epoch. And a worker's name that begins with a quotation mark is
-- already JSON, because the check's text must be ASCII whatever the database's encoding.
CREATE OR REPLACE FUNCTION fencepost.refuse(fence integer, told bigint, worker text, incarnation text, held bigint, lapsed boolean)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    seq   regclass := to_regclass('fencepost.epoch_' || fence);
    fresh boolean := current_setting('transaction_isolation') = 'read committed'; -- each statement sees the latest
    cur   bigint;
    rec   fencepost.fence%ROWTYPE;
    mine  bigint; -- the epoch this candidacy has or had, or this connection believes in
    shown text; -- the worker's name, as JSON
    own   bigint; -- the same as mine, but for the current epoch that a connection only claims
    state text;
    what  text;
    who   text;
    hint  text;
BEGIN
    IF seq IS NOT NULL THEN
        cur := coalesce(pg_sequence_last_value(seq), 0);
    END IF;
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence;
    IF fencepost.holds(rec, cur, told, held, incarnation) AND NOT lapsed THEN
        RETURN NULL;
    END IF;
    SELECT max(g.epoch) INTO mine FROM fencepost.grants g WHERE g.id = fence AND g.incarnation = incarnation;
    shown := CASE WHEN worker LIKE '"%' THEN worker ELSE fencepost.quoted(worker) END;
    who := CASE WHEN worker IS NULL THEN 'this worker' ELSE 'worker ' || shown END;
    told := coalesce(told, 0);
    own := greatest(held, mine, CASE WHEN told <> cur THEN told END, 0);
    mine := greatest(told, held, mine, 0);

    IF seq IS NULL OR fresh AND rec.id IS NULL THEN
        state := 'ZF004';
        what := format('fence %s cannot be checked: its row or its sequence is missing', fence);
        hint := 'Run fencepost migrate, and connect again.';
    ELSIF told > cur OR held > cur THEN
        state := 'ZF004';
        what := format('%s was granted epoch %s on resource %s, but the fence only knows epoch %s: the database was restored from an older state',
            who, mine, fencepost.quoted(rec.resource), cur);
        hint := 'When all workers of the lost epochs have stopped, run: fencepost generation bump';
    ELSIF held = cur AND cur > 0 THEN -- nobody was granted since
        IF lapsed THEN
            state := 'ZF002';
            what := format('the lease of %s on resource %s is not confirmed now; it holds epoch %s, and nobody else was granted one',
                who, fencepost.quoted(rec.resource), cur);
            hint := 'Retry the transaction.';
        ELSIF told < cur THEN
            state := 'ZF003';
            what := format('%s has become leader of resource %s with epoch %s since this connection last knew',
                who, fencepost.quoted(rec.resource), cur);
            hint := 'Start over from your first read: what was read before may be old. This connection now knows its epoch, and may write.';
        ELSIF NOT fresh AND coalesce(rec.epoch, 0) < cur THEN
            state := '40001';
            what := format('the snapshot of this transaction is from before the grant of epoch %s on resource %s', cur, fencepost.quoted(rec.resource));
            hint := 'Retry the transaction.';
        ELSE
            state := 'ZF004';
            what := CASE WHEN rec.epoch = cur
                THEN format('epoch %s of resource %s was granted to another candidacy of %s: the database was restored from an older state',
                    cur, fencepost.quoted(rec.resource), fencepost.holder(rec.worker))
                ELSE format('the fence of resource %s disagrees with itself: its row has epoch %s, its sequence %s; the database was restored across a grant',
                    fencepost.quoted(rec.resource), rec.epoch, cur) END;
            hint := 'Connect again: the next grant puts it right.';
        END IF;
    ELSIF own > 0 AND own < cur THEN
        state := 'ZF001';
        what := format('%s was superseded on resource %s: its epoch is %s, and the current epoch %s is held by %s',
            who, fencepost.quoted(rec.resource), own, cur,
            CASE WHEN rec.epoch = cur THEN fencepost.holder(rec.worker) ELSE 'another worker' END);
        hint := 'Stop: what this worker was doing belongs to another now. This connection is over; connecting again begins anew.';
    ELSE
        state := 'ZF002';
        what := format('%s does not lead resource %s: %s', who, fencepost.quoted(rec.resource),
            CASE WHEN cur = 0 THEN 'no epoch was granted yet'
                 WHEN rec.epoch = cur THEN format('the current epoch %s is held by %s', cur, fencepost.holder(rec.worker))
                 ELSE format('the current epoch %s is held by another worker', cur) END);
        hint := 'Wait until this worker leads (SHOW fencepost.role), or connect with fencepost.campaign=wait.';
    END IF;

    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = what, HINT = hint,
        DETAIL = format('{"resource":%s,"worker":%s,"incarnation":%s,"epoch":%s,"current_epoch":%s,"current_worker":%s}',
            fencepost.quoted(rec.resource), shown, fencepost.quoted(incarnation),
            CASE state WHEN 'ZF003' THEN cur WHEN 'ZF001' THEN own ELSE mine END, coalesce(cur, 0),
            fencepost.quoted(CASE WHEN rec.epoch = cur THEN rec.worker END));
END $$;

-- The caller chooses the id of a registration, so that a late deletion does not remove another one:
-- neither a later one of the same backend, nor one of another backend that reused the process id.
-- Existing registrations get the id 0.
ALTER TABLE fencepost.running ADD COLUMN note bigint NOT NULL DEFAULT 0;
ALTER TABLE fencepost.running DROP CONSTRAINT running_pkey, ADD PRIMARY KEY (fence, pid, note);

DROP FUNCTION fencepost.enter(integer, integer, bigint);
DROP FUNCTION fencepost.leave(integer, integer);

-- enter records that a backend may write outside the check, under the same predicate as the check.
-- Because of the sequence's lock, either a grant sees the registration, or the registration sees
-- the grant.
CREATE FUNCTION fencepost.enter(fence integer, pid integer, note bigint, worker text, incarnation text, told bigint, held bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    last  bigint := pg_sequence_last_value(fencepost.sequence_of(fence));
    rec   fencepost.fence%ROWTYPE;
    since timestamptz;
BEGIN
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence;
    IF NOT fencepost.holds(rec, last, told, held, incarnation) THEN
        PERFORM fencepost.refuse(fence, told, worker, incarnation, held, false);
        RAISE EXCEPTION USING ERRCODE = 'ZF004', MESSAGE = format('fence %s cannot be checked', fence);
    END IF;
    SELECT a.backend_start INTO since FROM pg_stat_get_activity(pid) a WHERE a.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
    IF since IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004', MESSAGE = format('backend %s cannot be seen in this database', pid),
            HINT = 'The control role needs pg_read_all_stats.';
    END IF;
    INSERT INTO fencepost.running (pid, note, backend_start, fence, epoch) VALUES (pid, note, since, fence, held);
END $$;

-- leave deletes that registration and no other.
CREATE FUNCTION fencepost.leave(fence integer, pid integer, note bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    DELETE FROM fencepost.running r WHERE r.fence = fence AND r.pid = pid AND r.note = note;
END $$;

-- drain changes in one way: it ends a backend only if it is still the registered one.
CREATE OR REPLACE FUNCTION fencepost.drain(fence integer, since timestamptz, grace interval, patience interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    note  record;
    busy  integer;
    fault text;
BEGIN
    LOOP
        busy := 0;
        PERFORM pg_stat_clear_snapshot(); -- pg_stat_activity is cached per transaction
        FOR note IN
            SELECT r.pid, r.note, r.backend_start, a.pid IS NOT NULL AND a.backend_start IS NULL AS hidden,
                   a.pid IS NOT NULL AND a.backend_start = r.backend_start AS alive, a.usename, a.application_name
            FROM fencepost.running r LEFT JOIN pg_stat_activity a ON a.pid = r.pid
            WHERE r.fence = fence
        LOOP
            fault := NULL;
            IF note.hidden THEN
                fault := 'whether it is still there cannot be seen: the control role lacks pg_read_all_stats';
            ELSIF NOT note.alive THEN
                DELETE FROM fencepost.running r WHERE r.fence = fence AND r.pid = note.pid AND r.note = note.note;
                CONTINUE;
            ELSIF clock_timestamp() > since + grace THEN
                BEGIN
                    -- The lookup and the signal are one statement, because a process id may have
                    -- been reused since the list was made.
                    PERFORM pg_stat_clear_snapshot();
                    PERFORM pg_terminate_backend(a.pid) FROM pg_stat_get_activity(note.pid) a WHERE a.backend_start = note.backend_start;
                EXCEPTION WHEN insufficient_privilege THEN
                    fault := 'the control role may not end it';
                END;
            END IF;
            IF fault IS NULL AND clock_timestamp() > since + grace + patience THEN
                fault := format('it is still there %s after it was ended', patience);
            END IF;
            IF fault IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = format('backend %s of role %s (application %s) is in the way of a grant: %s',
                    note.pid, fencepost.quoted(note.usename), fencepost.quoted(note.application_name), fault);
            END IF;
            busy := busy + 1;
        END LOOP;
        EXIT WHEN busy = 0;
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;

-- The roles that may read the sequences and call what the check calls; everybody if there are none.
-- Names, not oids, so that they survive a dump.
CREATE TABLE fencepost.worker_roles (
    role name PRIMARY KEY
);
COMMENT ON TABLE fencepost.worker_roles IS 'the roles that may read the fence; none: everybody (PUBLIC)';

-- readers returns these roles as GRANT names them. Roles that no longer exist are left out: then
-- nobody may read, rather than everybody.
CREATE FUNCTION fencepost.readers() RETURNS SETOF text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM fencepost.worker_roles) THEN
        RETURN NEXT 'PUBLIC';
    END IF;
    RETURN QUERY SELECT quote_ident(r.role) FROM fencepost.worker_roles r JOIN pg_roles p ON p.rolname = r.role;
END $$;

-- admit allows the readers, and nobody else except its owner, to read a sequence. It changes only
-- what is not yet so, because a grant in progress changes the same rows of the catalog.
CREATE FUNCTION fencepost.admit(seq regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    wanted  text[] := ARRAY(SELECT fencepost.readers());
    present text[];
    who     text;
BEGIN
    SELECT coalesce(array_agg(CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END), '{}') INTO present
        FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('s', c.relowner))) a WHERE c.oid = seq AND a.grantee <> c.relowner;
    FOREACH who IN ARRAY present LOOP
        IF who <> ALL (wanted) THEN
            EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM %s', seq, who);
        END IF;
    END LOOP;
    FOREACH who IN ARRAY wanted LOOP
        IF who <> ALL (present) THEN
            EXECUTE format('GRANT SELECT ON SEQUENCE %s TO %s', seq, who);
        END IF;
    END LOOP;
END $$;

-- register changes in one way: it allows only the readers to read a new sequence.
CREATE OR REPLACE FUNCTION fencepost.register(resource text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    fence integer;
    last  bigint;
BEGIN
    SELECT f.id INTO fence FROM fencepost.fence f WHERE f.resource = resource;
    IF fence IS NULL THEN
        INSERT INTO fencepost.fence (resource) VALUES (resource) ON CONFLICT DO NOTHING RETURNING id INTO fence;
    END IF;
    IF fence IS NULL THEN -- somebody else made it meanwhile
        SELECT f.id INTO STRICT fence FROM fencepost.fence f WHERE f.resource = resource;
    END IF;
    IF fencepost.sequence_of(fence) IS NULL THEN
        SELECT f.epoch INTO STRICT last FROM fencepost.fence f WHERE f.id = fence FOR UPDATE;
        IF fencepost.sequence_of(fence) IS NULL THEN
            EXECUTE format('CREATE SEQUENCE fencepost.%I AS bigint', 'epoch_' || fence);
            PERFORM fencepost.admit(fencepost.sequence_of(fence));
            IF last > 0 THEN
                PERFORM setval(fencepost.sequence_of(fence), last);
            END IF;
        END IF;
    END IF;
    RETURN fence;
END $$;

-- set_worker_roles sets the readers: {} for everybody. seal applies them.
CREATE FUNCTION fencepost.set_worker_roles(roles text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    missing text;
BEGIN
    SELECT string_agg(quote_ident(r), ', ') INTO missing FROM unnest(roles) r WHERE NOT EXISTS (SELECT FROM pg_roles p WHERE p.rolname = r);
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'undefined_object', MESSAGE = format('the worker role %s does not exist', missing),
            HINT = 'Create it first, or name another.';
    END IF;
    DELETE FROM fencepost.worker_roles w WHERE w.role <> ALL (roles);
    INSERT INTO fencepost.worker_roles SELECT DISTINCT r::name FROM unnest(roles) r ON CONFLICT DO NOTHING;
END $$;

-- seal sets all privileges of roles other than the owner, so that it also corrects what a later
-- migration added and what a restore lost.
CREATE OR REPLACE FUNCTION fencepost.seal() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    wanted  text[] := ARRAY(SELECT fencepost.readers());
    gate    regprocedure;
    who     text;
    present regclass;
BEGIN
    GRANT USAGE ON SCHEMA fencepost TO PUBLIC;
    REVOKE ALL ON ALL ROUTINES IN SCHEMA fencepost FROM PUBLIC;
    REVOKE ALL ON ALL TABLES IN SCHEMA fencepost FROM PUBLIC;
    GRANT SELECT ON fencepost.status TO PUBLIC;
    FOREACH gate IN ARRAY ARRAY['fencepost.refuse(integer,bigint,text,text,bigint,boolean)', 'fencepost.current(bigint,bigint,bigint)']::regprocedure[] LOOP
        FOR who IN SELECT quote_ident(pg_get_userbyid(a.grantee)) FROM pg_proc p, aclexplode(p.proacl) a
            WHERE p.oid = gate AND a.grantee NOT IN (0, p.proowner)
        LOOP
            EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %s', gate, who);
        END LOOP;
        FOREACH who IN ARRAY wanted LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', gate, who);
        END LOOP;
    END LOOP;
    FOR present IN SELECT c.oid::regclass FROM pg_class c
        WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind = 'S' AND c.relname ~ '^epoch_[0-9]+$'
    LOOP
        PERFORM fencepost.admit(present);
    END LOOP;
END $$;

-- The view also names the sequence, so that its readers can find out who blocks a takeover.
CREATE OR REPLACE VIEW fencepost.status AS
    SELECT resource, epoch, worker, source, source_generation, source_index, granted_at,
        'fencepost.epoch_'::text OPERATOR(pg_catalog.||) id::text AS sequence FROM fencepost.fence;

-- warnings returns what an operator should know about the power of other roles over the fence in
-- this database.
CREATE FUNCTION fencepost.warnings() RETURNS SETOF text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    prepared integer := current_setting('max_prepared_transactions')::integer;
    everyone boolean := NOT EXISTS (SELECT FROM fencepost.worker_roles);
    missing  text;
    mighty   text;
BEGIN
    IF prepared > 0 AND everyone THEN
        RETURN NEXT format('max_prepared_transactions is %s, and every role may read the fence: a prepared transaction that has read it blocks the takeover of that resource until somebody ends it. Set max_prepared_transactions to 0 if nobody needs it; migrate --worker-role says who may read', prepared);
    ELSIF prepared > 0 THEN
        RETURN NEXT format('max_prepared_transactions is %s: Postgres locks a sequence before it looks at the right, so every role that may connect can still block a takeover by a prepared transaction, on purpose. Set max_prepared_transactions to 0 if nobody needs it', prepared);
    END IF;
    SELECT string_agg(quote_ident(w.role), ', ' ORDER BY w.role) INTO missing FROM fencepost.worker_roles w
        WHERE NOT EXISTS (SELECT FROM pg_roles p WHERE p.rolname = w.role);
    IF missing IS NOT NULL THEN
        RETURN NEXT format('the worker role %s does not exist any more: say who the workers are by migrate --worker-role', missing);
    END IF;
    SELECT string_agg(quote_ident(r.rolname), ', ' ORDER BY r.rolname) INTO mighty FROM pg_roles r
        WHERE r.rolcanlogin AND NOT r.rolsuper AND r.oid <> (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'fencepost')
          AND pg_has_role(r.oid, 'pg_write_all_data', 'MEMBER')
          AND (everyone OR EXISTS (SELECT FROM fencepost.worker_roles w JOIN pg_roles p ON p.rolname = w.role WHERE pg_has_role(r.oid, p.oid, 'MEMBER')));
    IF mighty IS NOT NULL THEN
        RETURN NEXT format('pg_write_all_data lets %s change the fence itself (setval, UPDATE): take it from roles that workers use', mighty);
    END IF;
END $$;

SELECT fencepost.seal();
