-- Corrections to orders, to the way back after a restore, to the registry, and to what a released
-- lease tells.

-- pause changes in one way: it also ends an epoch that only the sequence or the ledger records, as
-- after the restore of a dump that was taken across a grant.
CREATE OR REPLACE FUNCTION fencepost.pause(fence integer, asked_by text, reason text, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec   fencepost.fence%ROWTYPE;
    epoch bigint;
    id    bigint;
BEGIN
    PERFORM fencepost.secure();
    rec := fencepost.lock_fence(fence);
    IF EXISTS (SELECT FROM fencepost.bars b WHERE b.fence = fence AND b.worker IS NULL) THEN
        RETURN 0;
    END IF;
    IF rec.incarnation IS NOT NULL OR fencepost.known_epoch(rec) > rec.epoch THEN
        epoch := fencepost.vacate(rec, grace, patience);
    END IF;
    id := fencepost.note_order('pause', rec.resource, rec.worker, NULL, epoch, NULL, asked_by, reason);
    PERFORM fencepost.bar(fence, NULL, NULL, id);
    RETURN id;
END $$;

-- readers_of says which other transactions have read a fence's sequence and were not checked, NULL
-- if none have. A check locks the sequence in another mode.
CREATE FUNCTION fencepost.readers_of(fence integer) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    seq regclass := fencepost.sequence_of(fence);
BEGIN
    PERFORM pg_stat_clear_snapshot();
    RETURN (SELECT string_agg(DISTINCT CASE WHEN l.pid IS NULL THEN 'a prepared transaction'
            ELSE format('backend %s of role %s (application %s, %s)', l.pid, fencepost.quoted(a.usename),
                fencepost.quoted(a.application_name), coalesce(a.state, 'unknown')) END, '; ')
        FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'relation' AND l.granted AND l.relation = seq AND l.mode = 'AccessShareLock'
          AND NOT EXISTS (SELECT FROM pg_locks c WHERE c.locktype = 'relation' AND c.granted AND c.relation = seq
              AND c.virtualtransaction = l.virtualtransaction AND c.mode <> 'AccessShareLock')
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND l.pid IS DISTINCT FROM pg_backend_pid());
END $$;

-- remove changes in one way: it waits for at most grace for transactions that have only read the
-- sequence. Then it gives up, and names them. It does so before it takes the lead from anybody, and
-- again when the sequence is dropped, because the checks of the resource wait meanwhile.
CREATE OR REPLACE FUNCTION fencepost.remove(fence integer, force boolean, asked_by text, reason text, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec   fencepost.fence%ROWTYPE;
    epoch bigint;
    why   text;
    until timestamptz := clock_timestamp() + grace;
    timeout text; -- of locks, for the rest
BEGIN
    PERFORM fencepost.secure();
    SELECT f.* INTO rec FROM fencepost.fence f WHERE f.id = fence FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    why := fencepost.in_use(rec);
    IF why IS NOT NULL AND NOT force THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF009', MESSAGE = format('resource %s was not removed: %s', fencepost.quoted(rec.resource), why),
            HINT = 'Stop its workers first. If you are sure, use --force.';
    END IF;
    WHILE fencepost.readers_of(fence) IS NOT NULL AND clock_timestamp() < until LOOP
        PERFORM pg_sleep(0.05);
    END LOOP;
    why := fencepost.readers_of(fence);
    IF why IS NULL THEN
        epoch := fencepost.vacate(rec, grace, patience);
        BEGIN
            timeout := current_setting('lock_timeout');
            PERFORM set_config('lock_timeout', format('%sms', greatest(1, ceil(extract(epoch FROM grace) * 1000))), true);
            EXECUTE format('DROP SEQUENCE fencepost.%I', 'epoch_' || fence);
            PERFORM set_config('lock_timeout', timeout, true);
        EXCEPTION WHEN lock_not_available THEN
            why := coalesce(fencepost.readers_of(fence), 'it has ended by now');
        END;
    END IF;
    IF why IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF009',
            MESSAGE = format('resource %s was not removed: a transaction has read its sequence, and is still open: %s', fencepost.quoted(rec.resource), why),
            HINT = 'Wait until that transaction has ended (pg_dump reads all sequences), or end its backend with pg_terminate_backend, and remove the resource again.';
    END IF;
    UPDATE fencepost.floor l SET epoch = greatest(l.epoch, epoch);
    DELETE FROM fencepost.lease l WHERE l.resource = rec.resource;
    DELETE FROM fencepost.running r WHERE r.fence = fence;
    DELETE FROM fencepost.grants g WHERE g.id = fence;
    DELETE FROM fencepost.fence f WHERE f.id = fence; -- and its bars
    RETURN fencepost.note_order('remove', rec.resource, rec.worker, NULL, epoch, NULL, asked_by, reason);
END $$;

COMMENT ON TABLE fencepost.floor IS 'no new resource begins below this epoch: the highest one of all removed resources, and of those that a restore may have lost';

-- raise_floor is for an operator whose database was restored from an older state, before raise_epoch.
-- Resources may have been lost that were created after that state. When they are created again, they
-- must repeat neither their epochs, which are at most above (NULL: unknown, far above everything
-- recorded here), nor their numbers: a session from before the restore would pass their check.
CREATE FUNCTION fencepost.raise_floor(above bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    numbers regclass := pg_get_serial_sequence('fencepost.fence', 'id');
BEGIN
    PERFORM fencepost.secure();
    UPDATE fencepost.floor l SET epoch = greatest(l.epoch, coalesce(above, 1048576
        + greatest(l.epoch, (SELECT max(f.epoch) FROM fencepost.fence f), (SELECT max(g.epoch) FROM fencepost.grants g))));
    PERFORM setval(numbers, nextval(numbers) + 1048576);
END $$;

-- sweep deletes the registrations of backends that are gone, which a proxy leaves behind that has
-- died. A backend that cannot be seen may be there. Rows that another sweep deletes are skipped.
CREATE FUNCTION fencepost.sweep() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_stat_clear_snapshot(); -- the backends are read after the rows, never before
    DELETE FROM fencepost.running r WHERE (r.fence, r.pid, r.note) IN (
        SELECT old.fence, old.pid, old.note FROM fencepost.running old
        WHERE NOT EXISTS (SELECT FROM pg_stat_get_activity(old.pid) a
            WHERE a.pid = old.pid AND coalesce(a.backend_start = old.backend_start, true))
        FOR UPDATE SKIP LOCKED);
END $$;

-- register changes in one way: it sweeps the registry, because a proxy that replaces one that has
-- died begins with this. A standby's registry cannot be read.
CREATE OR REPLACE FUNCTION fencepost.register(resource text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    fence integer;
    last  bigint;
BEGIN
    IF NOT pg_is_in_recovery() THEN
        PERFORM fencepost.sweep();
    END IF;
    SELECT f.id INTO fence FROM fencepost.fence f WHERE f.resource = resource;
    IF fence IS NULL THEN
        PERFORM fencepost.identify();
        SELECT l.epoch INTO STRICT last FROM fencepost.floor l FOR SHARE;
        INSERT INTO fencepost.fence (resource, epoch) VALUES (resource, last) ON CONFLICT DO NOTHING RETURNING id INTO fence;
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

-- A lease that was released for silence says how long the worker had been silent: the timeout is the
-- worker's own, which other proxies do not know.
ALTER TABLE fencepost.lease ADD COLUMN silent interval; -- NULL: not known

-- lease_release with the silence of the worker.
CREATE FUNCTION fencepost.lease_release(resource text, award bigint, incarnation text, vacancy text, silent interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    changed boolean;
BEGIN
    IF award = 0 THEN
        PERFORM fencepost.lease_row(resource);
        DELETE FROM fencepost.lease_over o WHERE o.incarnation IN (SELECT old.incarnation FROM fencepost.lease_over old
            WHERE old.noted_at < clock_timestamp() - interval '1 hour' FOR UPDATE SKIP LOCKED);
        INSERT INTO fencepost.lease_over AS o (incarnation) VALUES (incarnation) ON CONFLICT DO NOTHING;
    END IF;
    UPDATE fencepost.lease l SET vacancy = vacancy, silent = silent, expires_at = clock_timestamp()
        WHERE l.resource = resource AND l.award IN (award, CASE WHEN award = 0 THEN l.award END) AND l.incarnation = incarnation
          AND (l.vacancy = 'held' OR l.vacancy = 'silence' AND vacancy = 'left');
    changed := FOUND;
    IF changed THEN
        PERFORM fencepost.lease_tell(resource);
    END IF;
    RETURN changed;
END $$;

-- A proxy from before this migration does not tell the silence.
CREATE OR REPLACE FUNCTION fencepost.lease_release(resource text, award bigint, incarnation text, vacancy text) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT fencepost.lease_release(resource, award, incarnation, vacancy, NULL::interval)
$$;

SELECT fencepost.seal();
