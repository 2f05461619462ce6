-- An order that keeps a worker from leading holds for a shared token too. A worker that was kept from it led
-- again by bringing the token of the leader, and an eviction of one that shared a token took nothing from it.

-- must_be_free fails if an order keeps the worker from leading.
CREATE FUNCTION fencepost.must_be_free(rec fencepost.fence, worker text, incarnation text, known bigint)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    bar record;
BEGIN
    SELECT b.* INTO bar FROM fencepost.barred(rec.id, fencepost.quoted(worker)) b;
    IF bar.what IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF008',
            MESSAGE = format('worker %s does not lead resource %s: %s', fencepost.quoted(worker), fencepost.quoted(rec.resource), bar.what),
            DETAIL = format('{"resource":%s,"worker":%s,"incarnation":%s,"current_epoch":%s,"left_ms":%s}', fencepost.quoted(rec.resource),
                fencepost.quoted(worker), fencepost.quoted(incarnation), known, coalesce(bar.left_ms::text, 'null')),
            HINT = bar.hint;
    END IF;
END $$;

-- grant changes in one way: it asks this for a share in an epoch, too.
CREATE OR REPLACE FUNCTION fencepost.grant(fence integer, worker text, incarnation text, source text, marker text, index bigint,
    held bigint, floor bigint, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    era    bigint;
    rec    fencepost.fence%ROWTYPE;
    after  fencepost.fence%ROWTYPE;
    known  bigint;
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
    newer := (era, index) > (rec.source_generation, rec.source_index)
        OR rec.incarnation IS NULL AND coalesce(rec.source, '') = 'token' AND source = 'token' AND (era, index) = (rec.source_generation, rec.source_index);

    IF greatest(held, floor) > known THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF004',
            MESSAGE = format('the fence of resource %s knows epoch %s, but epoch %s was granted before: the database was restored from an older state',
                fencepost.quoted(rec.resource), known, greatest(held, floor)),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, greatest(held, floor), known, rec.worker),
            HINT = fencepost.restored_hint(greatest(held, floor));
    ELSIF held > 0 AND (rec.incarnation IS DISTINCT FROM incarnation OR rec.epoch > held) THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF001',
            MESSAGE = format('worker %s was superseded on resource %s: its epoch is %s, and the current epoch %s is held by %s',
                fencepost.quoted(worker), fencepost.quoted(rec.resource), held, known, fencepost.holder(rec.worker)),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, held, known, rec.worker),
            HINT = fencepost.superseded_hint(rec);
    ELSIF rec.incarnation = incarnation AND (newer OR (era, index) = (rec.source_generation, rec.source_index)) THEN
        IF rec.epoch IS DISTINCT FROM pg_sequence_last_value(fencepost.sequence_of(fence)) THEN
            RAISE EXCEPTION USING ERRCODE = 'ZF004',
                MESSAGE = format('the fence of resource %s disagrees with itself: the database was restored across a grant', fencepost.quoted(rec.resource)),
                DETAIL = fencepost.detail(rec.resource, worker, incarnation, rec.epoch, known, rec.worker),
                HINT = 'Connect again: the next grant puts it right.';
        END IF;
        -- Write even if nothing changes: only a commit that writes is flushed to disk.
        UPDATE fencepost.fence f SET source = source, source_generation = era, source_index = index WHERE f.id = fence;
        IF rec.worker IS DISTINCT FROM worker THEN
            PERFORM fencepost.must_be_free(rec, worker, incarnation, known);
            INSERT INTO fencepost.bearers (id, epoch, worker) VALUES (fence, rec.epoch, worker) ON CONFLICT DO NOTHING;
        END IF;
        RETURN rec.epoch;
    ELSIF NOT newer THEN
        RAISE EXCEPTION USING ERRCODE = 'ZF006',
            MESSAGE = format('the award of resource %s to worker %s (source %s, generation %s, index %s) is not newer than the recorded one (source %s, generation %s, index %s)',
                fencepost.quoted(rec.resource), fencepost.quoted(worker), fencepost.quoted(source), era, index,
                fencepost.quoted(rec.source), rec.source_generation, rec.source_index),
            DETAIL = fencepost.detail(rec.resource, worker, incarnation, 0, known, rec.worker),
            HINT = 'If the lease service was restored or rebuilt, or another one is configured, run: fencepost generation bump';
    END IF;

    PERFORM fencepost.must_be_free(rec, worker, incarnation, known);
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

-- evict changes in one way: a worker that shares the token in force leads as the recorded one does. An epoch has
-- one end, so its token ends for all.
CREATE OR REPLACE FUNCTION fencepost.evict(fence integer, worker text, duration interval, asked_by text, reason text, grace interval, patience interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    rec    fencepost.fence%ROWTYPE;
    bearer text; -- who led last, if that is whose token is in force; NULL if the ledger does not say so
    last   bigint; -- the epoch that a worker must lead, or have led, under
    target text;
    leads  boolean;
    epoch  bigint;
    until  timestamptz;
    id     bigint;
BEGIN
    PERFORM fencepost.secure();
    rec := fencepost.lock_fence(fence);
    IF rec.incarnation IS NULL AND rec.source = 'token' THEN
        SELECT g.worker, g.epoch INTO bearer, last FROM fencepost.grants g WHERE g.id = fence AND g.worker IS NOT NULL ORDER BY g.epoch DESC LIMIT 1;
        leads := worker IS NULL OR worker = coalesce(bearer, '');
    ELSE
        last := rec.epoch;
        leads := rec.incarnation IS NOT NULL AND rec.worker = coalesce(worker, rec.worker);
    END IF;
    leads := leads OR (rec.incarnation IS NOT NULL OR bearer IS NOT NULL)
        AND EXISTS (SELECT FROM fencepost.bearers b WHERE b.id = fence AND b.epoch = last AND b.worker = worker);
    target := coalesce(worker, rec.worker, bearer);
    IF NOT leads AND (duration IS NULL OR target IS NULL) THEN
        RETURN 0;
    END IF;
    IF leads THEN
        epoch := fencepost.vacate(rec, grace, patience);
    END IF;
    until := clock_timestamp() + duration;
    id := fencepost.note_order('evict', rec.resource, target, until, epoch, NULL, asked_by, reason);
    IF target IS NOT NULL AND duration IS NOT NULL THEN
        PERFORM fencepost.bar(fence, target, until, id);
    END IF;
    RETURN id;
END $$;

-- note_candidates changes in one way: it deletes the candidacies of an old proxy with it, and does not leave that to
-- the foreign key, which a database that is being restored does not have yet. Its creation failed after that.
CREATE OR REPLACE FUNCTION fencepost.note_candidates(proxy text, name text, known bigint, whole boolean,
    incarnations text[], resources text[], workers text[], silences boolean[], gone text[])
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    revision bigint;
    one      CONSTANT bigint := CASE WHEN cardinality(incarnations) + cardinality(gone) > 0 THEN 1 ELSE 0 END;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    WITH silent_ones AS (DELETE FROM fencepost.proxies p WHERE p.id IN (SELECT old.id FROM fencepost.proxies old
            WHERE old.seen < clock_timestamp() - interval '1 minute' AND old.id <> proxy FOR UPDATE SKIP LOCKED) RETURNING p.id)
        DELETE FROM fencepost.candidates c USING silent_ones s WHERE c.proxy = s.id;
    IF whole THEN
        INSERT INTO fencepost.proxies AS p (id, name, revision, seen) VALUES (proxy, name, 1, clock_timestamp())
            ON CONFLICT (id) DO UPDATE SET revision = p.revision + 1, seen = excluded.seen RETURNING p.revision INTO revision;
        DELETE FROM fencepost.candidates c WHERE c.proxy = proxy;
    ELSE
        UPDATE fencepost.proxies p SET revision = p.revision + one, seen = clock_timestamp()
            WHERE p.id = proxy AND p.revision = known RETURNING p.revision INTO revision;
        IF revision IS NULL THEN
            RETURN NULL;
        END IF;
        DELETE FROM fencepost.candidates c WHERE c.proxy = proxy AND c.incarnation = ANY (gone);
    END IF;
    INSERT INTO fencepost.candidates AS c (proxy, incarnation, resource, worker, silent)
        SELECT proxy, n.incarnation, n.resource, n.worker, n.silent
        FROM unnest(incarnations, resources, workers, silences) n (incarnation, resource, worker, silent)
        ON CONFLICT ON CONSTRAINT candidates_pkey DO UPDATE SET silent = excluded.silent;
    RETURN revision;
END $$;

SELECT fencepost.seal();
