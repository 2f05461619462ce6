-- Hints that name the whole command that helps, and that are the same as those of the proxy.

-- restored_hint says what to do about a database that was restored from an older state, where
-- epoch was granted before.
CREATE FUNCTION fencepost.restored_hint(epoch bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('When all workers of the lost epochs have stopped, run: fencepost generation bump --database %s --above %s',
        fencepost.quoted(current_database()), epoch)
$$;

-- refuse changes only in its hints.
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
        hint := fencepost.restored_hint(mine);
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
        hint := 'Another worker leads. Stop what this worker was doing. Connect again only to start over from the current state of the database.';
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

-- grant changes only in its hints.
CREATE OR REPLACE FUNCTION fencepost.grant(fence integer, worker text, incarnation text, source text, marker text, index bigint,
    held bigint, floor bigint, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    era    bigint;
    rec    fencepost.fence%ROWTYPE;
    after  fencepost.fence%ROWTYPE;
    known  bigint;
    mine   bigint;
    newer  boolean;
BEGIN
    PERFORM fencepost.secure();
    SELECT max(g.number) INTO era FROM fencepost.generations g WHERE g.source = source AND g.marker = marker;
    IF era IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF007',
            MESSAGE = format('the award of fence %s to worker %s is of a life of the lease service %s that has no number here',
                fence, fencepost.quoted(worker), fencepost.quoted(source)),
            HINT = 'Number that life, give the award back, and ask the lease service for another one.';
    END IF;
    rec := fencepost.lock_fence(fence);
    known := fencepost.known_epoch(rec);
    SELECT max(g.epoch) INTO mine FROM fencepost.grants g WHERE g.id = fence AND g.incarnation = incarnation;
    newer := (era, index) > (rec.source_generation, rec.source_index);

    IF greatest(held, floor) > known THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004',
            MESSAGE = format('the fence of resource %s knows epoch %s, but epoch %s was granted before: the database was restored from an older state',
                fencepost.quoted(rec.resource), known, greatest(held, floor)),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, greatest(held, floor), known, rec.worker),
            HINT = fencepost.restored_hint(greatest(held, floor));
    ELSIF rec.incarnation = incarnation AND (newer OR (era, index) = (rec.source_generation, rec.source_index)) THEN
        IF rec.epoch IS DISTINCT FROM pg_sequence_last_value(fencepost.sequence_of(fence)) THEN
            RAISE EXCEPTION USING ERRCODE = 'ZF004',
                MESSAGE = format('the fence of resource %s disagrees with itself: the database was restored across a grant', fencepost.quoted(rec.resource)),
                DETAIL = fencepost.detail(rec.resource, worker, incarnation, rec.epoch, known, rec.worker),
                HINT = 'Connect again: the next grant puts it right.';
        END IF;
        -- Write even if nothing changes: only a commit that writes is flushed to disk.
        UPDATE fencepost.fence f SET source = source, source_generation = era, source_index = index WHERE f.id = fence;
        RETURN rec.epoch;
    ELSIF rec.incarnation IS DISTINCT FROM incarnation AND (mine IS NOT NULL OR held > 0) THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF001',
            MESSAGE = format('worker %s was superseded on resource %s: its epoch is %s, and the current epoch %s is held by %s',
                fencepost.quoted(worker), fencepost.quoted(rec.resource), greatest(mine, held), known, fencepost.holder(rec.worker)),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, greatest(mine, held), known, rec.worker),
            HINT = 'Another worker leads. Stop what this worker was doing. Connect again only to start over from the current state of the database.';
    ELSIF NOT newer THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF006',
            MESSAGE = format('the award of resource %s to worker %s (source %s, generation %s, index %s) is not newer than the recorded one (source %s, generation %s, index %s)',
                fencepost.quoted(rec.resource), fencepost.quoted(worker), fencepost.quoted(source), era, index,
                fencepost.quoted(rec.source), rec.source_generation, rec.source_index),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, 0, known, rec.worker),
            HINT = 'If the lease service was restored or rebuilt, or another one is configured, run: fencepost generation bump';
    END IF;

    after := rec;
    after.epoch := known + 1;
    after.worker := worker;
    after.incarnation := incarnation;
    after.source := source;
    after.source_generation := era;
    after.source_index := index;
    after.granted_at := clock_timestamp();
    PERFORM fencepost.advance(rec, after, grace, patience);
    RETURN after.epoch;
END $$;

SELECT fencepost.seal();
